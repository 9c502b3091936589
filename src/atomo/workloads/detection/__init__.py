"""Objects on images: a box each, a category, and an outline."""
