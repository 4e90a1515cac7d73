"""A wrong result is not worth a time."""

from __future__ import annotations


def checked(what: str, share: float) -> float:
    """`share` of its bound is how far the result is from float64's; ArithmeticError beyond 1."""
    if not share <= 1:  # NaN too
        raise ArithmeticError(f"bench: {what} differs from float64 by {share:.3g} of its bound")
    return share
