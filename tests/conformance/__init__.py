"""Scenarios that say record for record what must come out, and what runs them. README.md describes both."""
