"""The job of a rank: its data, its plan, its events, and its control."""
