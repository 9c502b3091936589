"""How those who compute a step divide its images, known to the master and to every worker."""

__all__ = ["part"]


def part(images: int, index: int, among: int) -> range:
    """The images of the `index`-th of `among` workers, in the order of ranks, by their places."""
    return range(images * index // among, images * (index + 1) // among)
