"""Speech, by clip."""
