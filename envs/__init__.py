"""Text environments on the host; none of them imports JAX.

Importing this package registers the environments with gymnasium.
"""

from gymnasium.envs.registration import register

from envs.failures import TaskError
from envs.game import Counters, Game, Turn
from envs.protocol import TextVectorEnv
from envs.single_env import GameEnv
from envs.vector_env import GameVectorEnv

__all__ = ["Counters", "Game", "GameEnv", "GameVectorEnv", "TaskError", "TextVectorEnv", "Turn"]

_IDS = {
    "SokobanSimple": ("sokoban", "simple"),
    "SokobanHard": ("sokoban", "hard"),
    "SokobanLong": ("sokoban", "long"),
    "FrozenLake4x4": ("frozen_lake", "4x4"),
    "FrozenLake8x8": ("frozen_lake", "8x8"),
    "FrozenLakeSlippery4x4": ("frozen_lake", "slippery-4x4"),
    "FrozenLakeSlippery8x8": ("frozen_lake", "slippery-8x8"),
    "FrozenLakeFixed4x4": ("frozen_lake", "fixed-4x4"),
    "FrozenLakeFixed8x8": ("frozen_lake", "fixed-8x8"),
    "FrozenLakeCorners4x4": ("frozen_lake", "corners-4x4"),
    "FrozenLakeCorners8x8": ("frozen_lake", "corners-8x8"),
    "FrozenLakePaper": ("frozen_lake", "paper"),
    "CliffWalking": ("cliff_walking", "standard"),
    "CliffWalkingSlippery": ("cliff_walking", "slippery"),
    "CliffWalkingRandom": ("cliff_walking", "random"),
    "CliffWalkingPaper": ("cliff_walking", "paper"),
}

for _name, (_task, _preset) in _IDS.items():
    register(
        id=f"FreshPER/{_name}-v0",
        entry_point=f"envs.{_task}:make_single_{_task}",
        vector_entry_point=f"envs.{_task}:make_{_task}",
        kwargs={"preset": _preset},
    )

for _name, _task in (
    ("Arithmetic", "arithmetic"),
    ("GSM8K", "gsm8k"),
    ("Competition", "offline"),
    ("AIME", "aime"),
):
    register(
        id=f"FreshPER/{_name}-v0",
        entry_point="envs.math_problems:make_single_math",
        vector_entry_point="envs.math_problems:make_math",
        kwargs={"task": _task},
    )

register(
    id="FreshPER/NQSearch-v0",
    entry_point="envs.nq_search:make_single_nq_search",
    vector_entry_point="envs.nq_search:make_nq_search",
)
