"""The planner that `auto` and `fusion` share, and plans made anew."""
