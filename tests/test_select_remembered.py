"""A choice that is remembered is the one that would be made."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

from dense_problems import DEVICES, Case, cases, devices, fields
from hypothesis import given, settings
from hypothesis import strategies as st
from test_select_w4a16_cuda import problems

W4_FIELDS = (
    *("kernel", "block_m", "block_n", "warps", "stages", "cluster", "ctas", "splits"),
    *("stream_k", "copy_x", "workspace_bytes", "reason"),
)


def twins(case: Case) -> list[Case]:
    """The same products in other places, steps and forms: many of them share a slot."""
    moved = replace(case.d, address=case.d.address + 2)
    return [case, replace(case, d=moved), replace(case, alpha=2.0), replace(case, beta=1.0)]


@settings(max_examples=300)
@given(case=cases(), device=devices)
def test_of_dense_products(cpp: ModuleType, case: Case, device: tuple[int, int]) -> None:
    for other in (device, *DEVICES):
        for twin in (*twins(case), case):
            problem = twin.problem(cpp)
            expected = cpp.select_gemm(problem, *other)
            assert fields(cpp.remembered_gemm(problem, *other)) == fields(expected)


@settings(max_examples=300)
@given(problem=problems(), device=st.sampled_from([(90, 132), (90, 78), (80, 108)]))
def test_of_packed_weights(
    cpp: ModuleType, problem: dict[str, Any], device: tuple[int, int]
) -> None:
    forms: list[dict[str, Any]] = [{}, {"batch_invariant": True}, {"perm": True}, {}]
    forms += [{"zeros": not problem["zeros"]}, {"dtype": "float32"}, {"m": problem["m"] + 1}, {}]
    for form in forms:
        described = cpp.W4A16Problem(**{**problem, **form})
        found, expected = (
            choose(described, *device) for choose in (cpp.remembered_w4a16, cpp.select_w4a16)
        )
        assert (found is None) == (expected is None)
        if expected is not None:
            assert [getattr(found, f) for f in W4_FIELDS] == [
                getattr(expected, f) for f in W4_FIELDS
            ]
