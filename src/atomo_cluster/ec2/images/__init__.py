"""Machine images: published and baked."""
