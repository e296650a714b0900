"""What a task remembers: its rows on disk, the writes before they get there, and the changelog that brings them back."""
