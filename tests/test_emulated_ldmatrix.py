"""ldmatrix under the emulator, against the addresses and owners that `xgemm layout` draws."""

from __future__ import annotations

import pytest
import torch
from emulator.library import Machine, Memory, library

from xgemm.layouts.banks import LANES, ldmatrix_addresses
from xgemm.layouts.fragments import LDMATRIX, ldmatrix_owners

# Rows that lie apart, padded or swizzled: bytes of a row, padding, swizzle.
LAYOUTS = ((32, 0, "none"), (64, 16, "none"), (64, 0, "64"), (128, 0, "128"))
UNALIGNED = 2  # an address that ldmatrix refuses, if it uses it


def load(variant: str, addresses: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Shared memory by 16 bits, each with a value of its own, and each lane's elements."""
    Machine().use()
    memory = Memory()
    data = memory.copy(torch.arange(library().LDMATRIX_BYTES // 2, dtype=torch.int16))
    offsets = memory.copy(torch.tensor(addresses, dtype=torch.int32))
    out = memory.empty((LANES, 2 * int(variant[1])), torch.int16)
    library().ldmatrix(variant, data.data_ptr(), offsets.data_ptr(), out.data_ptr())
    return data.clone(), out.clone()


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("variant", LDMATRIX)
def test_each_element_goes_to_the_owner_that_is_drawn(
    variant: str, layout: tuple[int, int, str]
) -> None:
    owners = ldmatrix_owners(variant)
    addresses = ldmatrix_addresses(int(variant[1]), *layout)
    assert len(addresses) == len(owners)
    unused = [UNALIGNED] * (LANES - len(addresses))
    data, out = load(variant, addresses + unused)
    expected = torch.full_like(out, -1)
    for address, row in zip(addresses, owners, strict=True):
        for column, owner in enumerate(row):
            expected[owner.thread, owner.index] = data[address // 2 + column]
    assert (expected >= 0).all()  # every lane owns two elements of each matrix
    assert torch.equal(out, expected)


@pytest.mark.parametrize("variant", LDMATRIX)
def test_the_lanes_that_are_drawn_give_the_addresses(variant: str) -> None:
    used = len(ldmatrix_owners(variant))
    for lane in range(LANES):
        addresses = [16 * i for i in range(LANES)]
        addresses[lane] = UNALIGNED
        if lane < used:
            with pytest.raises(RuntimeError, match="a matrix row that is not aligned to 16 bytes"):
                load(variant, addresses)
        else:
            load(variant, addresses)
