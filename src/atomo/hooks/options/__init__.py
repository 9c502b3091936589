"""Options of hooks: names, defaults and checks, and the configuration that they make."""
