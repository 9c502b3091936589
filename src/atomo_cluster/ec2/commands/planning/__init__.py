"""Commands before a launch: settings, permissions, prices, plans and checks."""
