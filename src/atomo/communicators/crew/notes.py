"""What a person should know of a verdict, in lines."""

from collections.abc import Iterator, Sequence

from atomo.communicators.crew.standing import Verdict

__all__ = ["notes_of"]


def notes_of(before: Sequence[int], verdict: Verdict, places: int) -> Iterator[str]:
    """Who is gone, and who takes part now.

    Args:
        before: who took part.
        verdict: says who does.
        places: how many ranks the job has that do.
    """
    left, joined = {*before} & {*verdict.members}, {*verdict.members} - {*before}
    from_then_on = f"from step {verdict.edge} on"
    for count, rank in enumerate(sorted({*before} - left), 1):
        # Those who died before it are replaced first.
        replaced = places - len(before) + count <= len(joined) + len(verdict.waiting)
        then = "a spare takes its place" if replaced else "share its part of each step"
        yield (
            f"rank {rank} is gone; {len(left)} of {places} ranks go on, and {then} {from_then_on}"
        )
    for rank in sorted(joined):
        yield f"rank {rank}, a spare, takes part {from_then_on}"
