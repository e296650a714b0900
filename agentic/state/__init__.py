"""What a task remembers: its rows on disk, the writes on their way there, and the changelog that brings them back."""
