"""Parts of `atomo explain`: options, profiles, runs, tables."""
