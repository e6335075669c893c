"""Text environments on the host; none of them imports JAX.

Importing this package registers the environments with gymnasium.
"""

from gymnasium.envs.registration import register

from envs.protocol import TextVectorEnv

__all__ = ["TextVectorEnv"]

for _name, _preset in (("Simple", "simple"), ("Hard", "hard"), ("Long", "long")):
    register(
        id=f"FreshPER/Sokoban{_name}-v0",
        entry_point="envs.sokoban.single_env:SokobanEnv",
        vector_entry_point="envs.sokoban.vector_env:make_sokoban",
        kwargs={"preset": _preset},
    )
