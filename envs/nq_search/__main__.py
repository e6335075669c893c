"""What players that are no models reach: `python -m envs.nq_search [--data FILE]`."""

import argparse
import sys
from pathlib import Path

from envs.nq_search.environments import offline_retriever
from envs.nq_search.offline import Facts, make_facts, make_invented, one_hop
from envs.nq_search.questions import QuestionSet
from envs.nq_search.readers import read_questions
from envs.nq_search.reference_scores import (
    constant_reference,
    oracle_reference,
    random_reference,
)
from envs.retrieval import RetrievalError, Retriever, make_corpus, make_retriever, open_index

CONSTANTS = (".", "a", "e", "1")  # answers that know nothing, and that a lenient match rewards


def main() -> None:
    """Prints a table of references for the offline questions, or for those of a file."""
    parser = argparse.ArgumentParser(prog="python -m envs.nq_search", description=__doc__)
    parser.add_argument("--data", type=Path, help="questions, .jsonl or .parquet")
    parser.add_argument("--index", type=Path, help="passages for --data, for an oracle's row")
    parser.add_argument("--topk", type=int, default=3, help="passages of a search")
    arguments = parser.parse_args()
    print(f"{'':36} {'exact':>8} {'lenient':>8}")
    if arguments.data is None:
        whole = make_facts()
        _print_facts("facts, held out", whole, offline_retriever(), arguments.topk)
        _print_facts("one_hop, held out", one_hop(whole), offline_retriever(), arguments.topk)
        invented = make_invented()
        retriever = make_retriever(make_corpus(invented.passages))
        _print_facts("invented, held out", invented, retriever, arguments.topk)
        return
    try:
        questions = read_questions(arguments.data)
        index = None if arguments.index is None else open_index(arguments.index)
    except (OSError, ValueError, ImportError, RetrievalError) as error:
        sys.exit(f"error: {error}")
    _print_questions(arguments.data.name, questions)
    if index is not None:
        _print("oracle, one search", oracle_reference(questions, index, topk=arguments.topk))


def _print_facts(title: str, facts: Facts, retriever: Retriever, topk: int) -> None:
    held_out = facts.split.held_out
    _print_questions(title, held_out)
    _print("oracle, one search", oracle_reference(held_out, retriever, topk=topk))
    queries = {text: solution.queries for text, solution in facts.solutions.items()}
    best = oracle_reference(held_out, retriever, topk=topk, queries=queries.__getitem__)
    _print("oracle, all searches", best)


def _print_questions(title: str, questions: QuestionSet) -> None:
    print(f"{title}: {len(questions):,} questions")
    for answer in CONSTANTS:
        reached = constant_reference(questions, answer)
        _print(f"always {answer!r}", reached.exact, reached.lenient)
    reached = random_reference(questions, [golds[0] for golds in questions.golds])
    _print("an answer to another question", reached.exact, reached.lenient)


def _print(name: str, *shares: float) -> None:
    print(f"  {name:34} " + " ".join(f"{share:8.3f}" for share in shares))


if __name__ == "__main__":
    main()
