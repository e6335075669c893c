"""Where the members of groups go: each group has a run of g slots, filled as they arrive."""

from typing import Any

import jax
import jax.numpy as jnp

from freshper_jax.replay.types import GroupSlots

__all__ = ["complete_groups", "empty_groups", "place_members"]

_NUMBER_BITS = 0x7FFFFFFF


def empty_groups(groups: int) -> GroupSlots:
    """Makes the record of no group.

    Args:
      groups: G, how many there is room for.

    Returns:
      The record.
    """
    # Each its own array: one in two places could not be donated.
    return GroupSlots(
        ids=jnp.zeros((groups,), jnp.int32),
        filled=jnp.zeros((groups,), jnp.int32),
        number=jnp.full((groups,), -1, jnp.int32),
        opened=jnp.zeros((), jnp.int32),
        cursor=jnp.zeros((), jnp.int32),
    )


def complete_groups(groups: GroupSlots, group_size: int) -> jax.Array:
    """Counts the groups that can be drawn.

    Args:
      groups: the record.
      group_size: g.

    Returns:
      int32 scalar.
    """
    return jnp.sum(groups.filled == group_size, dtype=jnp.int32)


def place_members(
    groups: GroupSlots, ids: jax.Array, room: jax.Array, group_size: int
) -> tuple[GroupSlots, jax.Array, jax.Array, jax.Array]:
    """Gives each row a slot: beside its group's members, or at the head of a new run.

    As if one row came at a time. A row whose group is complete, or gone, opens a new one under
    the same name.

    Args:
      groups: the record.
      ids: `[B]` int32, the group of each row.
      room: `[R]` int32, the runs that new groups take, in order; after the last the first again.
      group_size: g.

    Returns:
      The record; `[B]` int32, the slot of each row; `[B]` bool, whether the row is still there
      after the last one came; and `[G]` bool, the runs that a new group took.
    """

    def one_row(carry: tuple[GroupSlots, jax.Array], name: jax.Array) -> tuple[Any, Any]:
        groups, count = carry
        open_here = (groups.ids == name) & (groups.number >= 0) & (groups.filled < group_size)
        joins = jnp.any(open_here)
        run = jnp.where(joins, jnp.argmax(open_here).astype(jnp.int32), room[count % room.shape[0]])
        member = jnp.where(joins, groups.filled[run], 0)
        number = jnp.where(joins, groups.number[run], groups.opened)
        groups = GroupSlots(
            ids=groups.ids.at[run].set(name),
            filled=groups.filled.at[run].set(member + 1),
            number=groups.number.at[run].set(number),
            opened=jnp.where(joins, groups.opened, (groups.opened + 1) & _NUMBER_BITS),
            cursor=jnp.where(joins, groups.cursor, (run + 1) % groups.ids.shape[0]),
        )
        return (groups, jnp.where(joins, count, count + 1)), (run, member, number)

    before = groups
    (groups, _), places = jax.lax.scan(one_row, (groups, jnp.int32(0)), ids)
    run, member, number = places
    still_there = groups.number[run] == number
    return groups, run * group_size + member, still_there, groups.number != before.number
