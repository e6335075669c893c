"""NQ Search on the host: questions of fact, answered by searching and reading."""

from envs.nq_search.environments import (
    make_nq_search,
    make_single_nq_search,
    named_game,
    offline_retriever,
)
from envs.nq_search.game import PRESETS, Episodes, Rules, make_game
from envs.nq_search.offline import FactQuestion, Facts, make_facts, make_invented, one_hop
from envs.nq_search.parse import Act, Kind, parse_reply
from envs.nq_search.questions import (
    QuestionSet,
    Split,
    question_hash,
    separate_questions,
    split_questions,
)
from envs.nq_search.readers import QuestionFileError, read_questions
from envs.nq_search.reference_scores import (
    ReferenceScore,
    constant_reference,
    oracle_reference,
    random_reference,
)
from envs.nq_search.scoring import exact_match, lenient_match, normalise
from envs.nq_search.trim import Trim, trim_words

__all__ = [
    "PRESETS",
    "Act",
    "Episodes",
    "FactQuestion",
    "Facts",
    "Kind",
    "QuestionFileError",
    "QuestionSet",
    "ReferenceScore",
    "Rules",
    "Split",
    "Trim",
    "constant_reference",
    "exact_match",
    "lenient_match",
    "make_facts",
    "make_game",
    "make_invented",
    "make_nq_search",
    "make_single_nq_search",
    "named_game",
    "normalise",
    "offline_retriever",
    "one_hop",
    "oracle_reference",
    "parse_reply",
    "question_hash",
    "random_reference",
    "read_questions",
    "separate_questions",
    "split_questions",
    "trim_words",
]
