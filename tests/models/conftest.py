"""What tests of models share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from models.nets.precision import multiply_in


@pytest.fixture
def narrow_products() -> Iterator[None]:
    """Trunks multiply in bfloat16, in this process."""
    multiply_in("bfloat16")
    yield
    multiply_in("float32")
