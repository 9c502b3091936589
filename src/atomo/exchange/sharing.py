"""The division of a step's images among workers, known to the master and to every worker."""

__all__ = ["part"]


def part(images: int, index: int, among: int) -> range:
    """Returns the places of the images of the `index`-th of `among` workers."""
    return range(images * index // among, images * (index + 1) // among)
