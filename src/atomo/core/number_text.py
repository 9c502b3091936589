"""Numbers as people read them."""

__all__ = ["bytes_text", "duration_text", "ratio_text"]

MOST_S = 1e12  # 30,000 years; a longer time is a measurement error


def bytes_text(count: int | float) -> str:
    """Returns a number of bytes in a unit that suits it.

    >>> bytes_text(12345)
    '12.3 kB'
    """
    for unit in ("B", "kB", "MB"):
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def duration_text(seconds: int | float) -> str:
    """Formats seconds as hours, minutes and seconds; infinity and NaN as the number.

    >>> duration_text(3725)
    '1:02:05'
    >>> duration_text(float("inf"))
    'inf s'
    """
    if not abs(seconds) < MOST_S:
        return f"{seconds:.3g} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds_left:02}" if hours else f"{minutes}:{seconds_left:02}"


def ratio_text(dense: int | float, sent: int | float) -> str:
    """Formats the ratio of dense bytes to sent bytes; if nothing was sent, there is no number."""
    return f"{dense / sent:.1f}x" if sent else "-"
