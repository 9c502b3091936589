"""The adapter between hooks and reductions: buckets that change, unused parameters, agreement."""
