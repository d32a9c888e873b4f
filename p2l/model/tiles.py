"""Products of matrices in float32 for loops that numba compiles: four rows by sixteen or sixty-four columns at a time.

A loop in Python's words keeps its sums in memory; here they stay in registers, which is as fast as a library on one
core (150 to 220 billion operations a second on Zen 5) and costs no call: what follows a product stays in the same loop.

Shapes: R rows, D depth, N columns, a multiple of `LANES`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

ROWS, LANES = 4, 16
"""Rows of a tile, and columns of the narrow one: rows are multiples of the one, columns of the other."""
_FLOAT, _INT, _SHORT = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_WIDE = 4  # vectors of the wide tile
Array = npt.NDArray[Any]


@njit(nogil=True, cache=True)
def multiply(a: Any, b: Any, out: Any) -> None:
    """a (R, D) times b (D, N) into out (R, N); arrays lie row after row, and R is a multiple of `ROWS`."""
    depth, columns = a.shape[1], b.shape[1]
    for row in range(0, a.shape[0], ROWS):
        multiply_rows(a, row * depth, depth, b, 0, columns, out, row * columns, columns, depth, columns)


@njit(nogil=True, cache=True)
def multiply_rows(
    a: Any,
    a_at: Any,
    a_step: Any,
    b: Any,
    b_at: Any,
    b_step: Any,
    out: Any,
    at: Any,
    step: Any,
    depth: Any,
    columns: Any,
) -> None:
    """`ROWS` rows of a times so many rows of b, as `depth` says, into as many rows of out, of so many columns.

    Each begins at an element of an array without gaps, and its rows lie a step apart.
    """
    column = 0
    while column + _WIDE * LANES <= columns:
        _wide(a, a_at, a_step, b, b_at + column, b_step, out, at + column, step, depth)
        column += _WIDE * LANES
    while column < columns:
        _narrow(a, a_at, a_step, b, b_at + column, b_step, out, at + column, step, depth)
        column += LANES


def tiled(weight: Array) -> Array:
    """A weight (N, D) as `multiply` takes it: (D, N), columns filled up with zeros."""
    columns, depth = weight.shape
    found = np.zeros((depth, -(-columns // LANES) * LANES), np.float32)
    found[:, :columns] = weight.T
    return found


def _tile(vectors: int) -> Any:
    """A function for numba: rows of a (from element a_at on, a_step apart) times rows of b, into out, likewise."""

    @intrinsic
    def tile(
        _: Any, a: Any, a_at: Any, a_step: Any, b: Any, b_at: Any, b_step: Any, out: Any, at: Any, step: Any, depth: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            kinds = signature.args
            whole = [
                context.make_array(kind)(context, builder, value).data
                if isinstance(kind, types.Array)
                else context.cast(builder, value, kind, types.int64)
                for kind, value in zip(kinds, given, strict=True)
            ]
            a, b, out = (builder.gep(whole[n], [whole[n + 1]]) for n in (0, 3, 6))
            sums = _summed(builder, a, whole[2], b, whole[5], whole[9], vectors)
            for row, values in enumerate(sums):
                for number, value in enumerate(values):
                    place = builder.add(builder.mul(_INT(row), whole[8]), _INT(number * LANES))
                    builder.store(value, _vectors_at(builder, out, place), align=4)
            return context.get_dummy_value()

        return types.void(a, a_at, a_step, b, b_at, b_step, out, at, step, depth), generate

    return tile


def _summed(builder: Any, a: Any, a_step: Any, b: Any, b_step: Any, depth: Any, vectors: int) -> list[list[Any]]:
    """The sums of a tile, in registers: a loop over the depth (at least 1)."""
    before, loop = builder.block, builder.append_basic_block("depth")
    after = builder.append_basic_block("summed")
    builder.branch(loop)
    builder.position_at_end(loop)
    number = builder.phi(_INT)
    sums = [[builder.phi(_VECTOR) for _ in range(vectors)] for _ in range(ROWS)]
    line = builder.mul(number, b_step)
    right = [
        builder.load(_vectors_at(builder, b, builder.add(line, _INT(vector * LANES))), align=4)
        for vector in range(vectors)
    ]
    added = []
    for row in range(ROWS):
        left = _spread(builder, builder.load(builder.gep(a, [builder.add(builder.mul(_INT(row), a_step), number)])))
        added.append([_plus(builder, total, left, part) for total, part in zip(sums[row], right, strict=True)])
    further = builder.add(number, _INT(1))
    for phi, start, value in (
        (number, _INT(0), further),
        *(
            (old, _VECTOR([0.0] * LANES), new)
            for olds, news in zip(sums, added, strict=True)
            for old, new in zip(olds, news, strict=True)
        ),
    ):
        phi.add_incoming(start, before)
        phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", further, depth), loop, after)
    builder.position_at_end(after)
    return added


def _plus(builder: Any, total: Any, left: Any, right: Any) -> Any:
    flags = ("contract",)  # one instruction, where the processor has it
    return builder.fadd(total, builder.fmul(left, right, flags=flags), flags=flags)


def _spread(builder: Any, value: Any) -> Any:
    """A number in every lane."""
    none = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(none, value, _SHORT(0))
    return builder.shuffle_vector(first, none, ir.Constant(ir.VectorType(_SHORT, LANES), [0] * LANES))


def _vectors_at(builder: Any, start: Any, place: Any) -> Any:
    return builder.bitcast(builder.gep(start, [place]), _VECTOR.as_pointer())


_wide, _narrow = _tile(_WIDE), _tile(1)
