"""Text environments on the host; none of them imports JAX.

Importing this package registers the environments with gymnasium.
"""

from gymnasium.envs.registration import register

from envs.game import Counters, Game, Turn
from envs.protocol import TextVectorEnv
from envs.single_env import GameEnv
from envs.vector_env import GameVectorEnv

__all__ = ["Counters", "Game", "GameEnv", "GameVectorEnv", "TextVectorEnv", "Turn"]

for _name, _preset in (("Simple", "simple"), ("Hard", "hard"), ("Long", "long")):
    register(
        id=f"FreshPER/Sokoban{_name}-v0",
        entry_point="envs.sokoban:make_single_sokoban",
        vector_entry_point="envs.sokoban:make_sokoban",
        kwargs={"preset": _preset},
    )

register(
    id="FreshPER/NQSearch-v0",
    entry_point="envs.nq_search:make_single_nq_search",
    vector_entry_point="envs.nq_search:make_nq_search",
)
