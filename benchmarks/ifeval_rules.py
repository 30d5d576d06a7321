"""Compare our rules of IFEval with the authors' own code, on generated answers, strictly and loosely.

The authors' code is not part of Rollbook. The package `lm-eval` carries a copy of it:

    pip install --no-deps lm-eval && pip install langdetect nltk immutabledict
    .venv/bin/python benchmarks/ifeval_rules.py [--answers 4] [--seed 0]

Two kinds read data of the package `nltk` that the index does not have (a trained model of English sentences). They run
here with the same tokenizer, untrained, that knows our abbreviations; this is said in the output. Languages are
detected with the same seed on both sides. Prints the differences of each kind, and exits with 1 if one is unexplained.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import random
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from rollbook.core import Task
from rollbook.environments.builtin import IFEval
from rollbook.environments.builtin.instruction_rules import (
    ABBREVIATIONS,
    FIXED_ANSWERS,
    LANGUAGE_SEED,
    follows,
    follows_loosely,
)

NEEDED = ("lm_eval", "langdetect", "nltk", "immutabledict")
INSTALL = "pip install --no-deps lm-eval && pip install langdetect nltk immutabledict"
UNTRAINED = ("length_constraints:number_sentences", "change_case:capital_word_frequency")

Answer = tuple[Task, str]


def load_authors() -> ModuleType:
    """Import the authors' registry of rules alone: the package around it would import a framework for models."""
    folder = Path(next(iter(find_spec("lm_eval").submodule_search_locations)))  # type: ignore[union-attr, arg-type]
    for name in ("lm_eval", "lm_eval.tasks", "lm_eval.tasks.ifeval"):
        package = ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    return _without_downloads(lambda: importlib.import_module("lm_eval.tasks.ifeval.instructions_registry"))


def _without_downloads(load: Callable[[], ModuleType]) -> ModuleType:
    """Import with a tokenizer that is not trained in place of the one that would be downloaded."""
    import langdetect
    import nltk
    from nltk.tokenize.destructive import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    sentences = PunktSentenceTokenizer()
    sentences._params.abbrev_types.update(ABBREVIATIONS)
    words = NLTKWordTokenizer()
    nltk.data.find = nltk.data.load = lambda *_, **__: sentences
    nltk.download = lambda *_, **__: True
    nltk.sent_tokenize = lambda text, *_: sentences.tokenize(text)
    nltk.word_tokenize = lambda text, *_: [word for part in sentences.tokenize(text) for word in words.tokenize(part)]
    langdetect.DetectorFactory.seed = LANGUAGE_SEED
    registry = load()
    util: Any = sys.modules["lm_eval.tasks.ifeval.instructions_util"]
    util.count_sentences = lambda text: len(sentences.tokenize(text))
    return registry


class AuthorsRules:
    """The authors' verdicts, strict and loose, as their evaluation gives them."""

    def __init__(self) -> None:
        self._kinds = load_authors().INSTRUCTION_DICT

    def strict(self, text: str, kind: str, arguments: dict[str, Any]) -> bool:
        """Return whether a text follows an instruction."""
        rule = self._kinds[kind](kind)
        rule.build_description(**arguments)
        return bool(text.strip()) and bool(rule.check_following(text))

    def loose(self, text: str, kind: str, arguments: dict[str, Any]) -> bool:
        """Return whether one of eight forms of a text follows it."""
        lines = text.split("\n")
        cut = ["\n".join(lines[1:]).strip(), "\n".join(lines[:-1]).strip(), "\n".join(lines[1:-1]).strip()]
        forms = [text, *cut, text.replace("*", ""), *(each.replace("*", "") for each in cut)]
        return any(self.strict(form, kind, arguments) for form in forms)


WORDS = re.findall(
    r"\S+",
    "the a river house light of small and winter people often found near old town with many windows under blue sky "
    "while children played music by candle garden stone bridge letter evening story answer question time world it is "
    "was very good never always because people's don't it's NASA USA I THE AND OK R&D 3 42 3.14 1,000 U.S. Dr. e.g.",
)
OTHER_LANGUAGES = (
    "Der schnelle braune Fuchs springt über den faulen Hund und läuft dann in den Wald.",
    "La maison est grande et belle, mais le jardin est trop petit pour les enfants.",
    "El perro corre por el parque mientras los niños juegan con la pelota roja.",
    "यह एक बहुत ही सुंदर दिन है और हम सब बाहर खेल रहे हैं।",
    "これは日本語の文章です。天気がとても良いので散歩に行きます。",
    "Это очень длинное предложение на русском языке о погоде и о городе.",
    "هذا نص قصير باللغة العربية عن المدينة والطقس الجميل.",
    "Questa è una frase italiana che parla del mare e della montagna.",
    "Bu cümle Türkçe yazılmıştır ve hava hakkında konuşur.",
    "คนไทยชอบกินอาหารรสเผ็ดมากและอากาศร้อน",
    "이것은 한국어로 쓴 짧은 문장입니다. 날씨가 좋습니다.",
    "Đây là một câu tiếng Việt nói về thời tiết hôm nay.",
)
ODD_TEXTS = (
    "",
    "   \n\t ",
    "12345 67",
    "!!!",
    '"',
    '""',
    "***",
    "******",
    "* * *\n***\n* * *",
    "a******b",
    "a******a",
    "x\n******\n\n******\ny",
    "<<>>",
    "<< >>",
    "<<a>>b>>",
    "<<a\nb>>",
    "[]",
    "[a][b]\n[c\nd]",
    "```json\n{}\n```",
    "```JSON\n[1, 2]```",
    "```\n{'a': 1}\n```",
    "{}",
    "NaN",
    "P.S. p. s. P.P.S p.p. s",
    "P. S.\nP. P. S.",
    "- a\n* b\n** c\n*d*\n  - e\n-- f\n\t* g",
    "*\n*\n**\n****\n*a**b**c*",
    "**a** *b* ***c*** * d * _e_",
    "Section 1 Section2 SECTION 3\nsection 4 Section\n5",
    "My answer is yes. My answer is no.",
    "MY ANSWER IS YES.",
    "IT'S OK. DON'T GO: I CANNOT (REALLY) GONNA, 3D AND/OR U.S. R&D *BOLD* SELF-MADE O'NEIL",
    "\ufeff“Curly” ‘quotes’ and ’APOSTROPHE’ DON’T",
    "İSTANBUL ıß ſ K",
    "one\n\n\n\ntwo\n\n \n\nthree",
    '\'"it\'s" so\n\n"It" is',
    "a\r\n\r\nb\r\nc",
    "x" * 3000,
)


def make_prose(rng: random.Random, words: int) -> str:
    """Return sentences and paragraphs of random words."""
    text = ""
    for _ in range(words):
        end = rng.choice([" "] * 10 + [", ", ". ", ". ", "! ", "? ", ".\n", "\n\n", '." ', ") ", ": "])
        text += rng.choice(WORDS) + end
    return text.strip()


def satisfy(kind: str, arguments: dict[str, Any], text: str, rng: random.Random) -> str:
    """Change a text so that it comes near to what an instruction asks, often a little too much or too little."""
    near = lambda count: max(0, count + rng.choice((-1, 0, 0, 0, 1)))  # noqa: E731
    match kind.partition(":")[2]:
        case "number_words":
            return " ".join(rng.choices(WORDS, k=near(arguments["num_words"])))
        case "number_sentences":
            return " ".join(
                f"The {rng.choice(WORDS)} is here{rng.choice('.!?')}" for _ in range(near(arguments["num_sentences"]))
            )
        case "number_paragraphs":
            parts = [make_prose(rng, 8) for _ in range(near(arguments["num_paragraphs"]))]
            return rng.choice(("\n***\n", "***", "\n\n***\n\n", "\n****\n")).join(parts)
        case "nth_paragraph_first_word":
            parts = [make_prose(rng, 6).replace("\n\n", " ") for _ in range(near(arguments["num_paragraphs"]))]
            first = rng.choice((str.title, str.lower, str.upper))(arguments["first_word"])
            at = arguments["nth_paragraph"] - 1
            parts[at : at + 1] = [
                rng.choice(("", "'", '"', "**")) + first + rng.choice((" ", ", ", "'s ", "ly ", ". ")) + "then"
            ]
            return rng.choice(("\n\n", "\n\n", "\n\n\n", "\n")).join(parts)
        case "number_bullet_lists":
            mark = rng.choice(("* ", "- ", "*", "-", "• ", "** ", "  * ", "1. "))
            return "\n".join(
                [text.partition("\n")[0], *(f"{mark}point" for _ in range(near(arguments["num_bullets"])))]
            )
        case "number_highlighted_sections":
            mark = rng.choice(("*", "**", "***", "_"))
            return text + " ".join(f"{mark}part {n}{mark}" for n in range(near(arguments["num_highlights"])))
        case "multiple_sections":
            word = arguments["section_spliter"]
            form = rng.choice(("{} {}\n", "{}{}: ", "**{} {}**\n", "{}  {}\n", "{}\n{} "))
            return "\n".join(form.format(word, n + 1) + "text" for n in range(near(arguments["num_sections"])))
        case "number_placeholders":
            return text + " ".join(f"[part {n}]" for n in range(near(arguments["num_placeholders"])))
        case "postscript":
            marker = arguments["postscript_marker"]
            return text + "\n\n" + rng.choice((marker, marker.lower(), marker.replace(".", ". "), "PS:")) + " bye"
        case "constrained_response":
            answer = rng.choice(FIXED_ANSWERS)
            return rng.choice((answer, answer[:-1], answer.lower(), f"  {answer}\n", f"I think: {answer}"))
        case "json_format":
            value = json.dumps({"text": text})
            return rng.choice((value, f"```json\n{value}\n```", f"```\n{value}```", f"Here: {value}", value[:-1]))
        case "title":
            return rng.choice(("<<My Title>>\n", "<My Title>\n", "<< >>\n", "<<\n>>", "# <<T>> ")) + text
        case "two_responses":
            return rng.choice(
                ("{}******{}x", "{}\n******\n{}", "******{}******b{}", "{}*****{}y", "{}\n\n******\n\nb{}")
            ).format(text, text)
        case "repeat_prompt":
            given = arguments["prompt_to_repeat"]
            return rng.choice((given, given.upper(), f"  {given}", f'"{given}"', given[:-1])) + "\n" + text
        case "end_checker":
            phrase = arguments["end_phrase"]
            return (
                text
                + " "
                + rng.choice((phrase, phrase.lower(), f'{phrase}"', f"{phrase}  \n", f"{phrase}.", f"{phrase} ok"))
            )
        case "quotation":
            return rng.choice(('"{}"', '"{}', "“{}”", ' "{}"\n', "'{}'")).format(text)
        case "no_comma":
            return text.replace(",", rng.choice(("", "", "，", ";")))
        case "english_capital":
            return rng.choice((text.upper(), text.upper(), text.title(), text.upper() + " x"))
        case "english_lowercase":
            return rng.choice((text.lower(), text.lower(), text.lower() + " X"))
        case "capital_word_frequency":
            return (
                text.lower()
                + " "
                + " ".join(
                    rng.choices(("WORD", "A.B.", "IT'S", "X-Y", "DON'T,"), k=near(arguments["capital_frequency"]))
                )
            )
        case "existence" | "forbidden_words":
            words = arguments.get("keywords") or arguments["forbidden_words"]
            chosen = [rng.choice((word, word.upper(), f"{word}s", f"un{word}", word[:-1])) for word in words]
            return f"{text} {' '.join(chosen)}"
        case "frequency":
            return f"{text} {rng.choice((' ', '', '-')).join([arguments['keyword']] * near(arguments['frequency']))}"
        case "letter_frequency":
            return f"{text[:20]} {(arguments['letter'] + ' ').upper() * near(arguments['let_frequency'])}"
        case "response_language":
            return rng.choice(OTHER_LANGUAGES)
    raise KeyError(kind)


DECORATIONS: tuple[Callable[[str], str], ...] = (
    lambda text: text,
    lambda text: text,
    lambda text: f"Sure, here it is:\n{text}",
    lambda text: f"{text}\nI hope this helps, friend!",
    lambda text: f"Sure:\n\n{text}\n\nBye",
    lambda text: f"**{text}**",
    lambda text: f"```\n{text}\n```",
    lambda text: text.replace(" ", "  ").replace("\n", "\r\n"),
    lambda text: f"\n\n  {text}\t\n",
    lambda text: text.replace("'", "’").replace('"', "”"),
    lambda text: text[: len(text) // 2],
)


def make_answers(tasks: list[Task], per_task: int, seed: int) -> Iterator[Answer]:
    """Yield answers that follow all, some or none of the instructions of each task, in many formats."""
    rng = random.Random(seed)
    for task in tasks:
        for number in range(per_task):
            text = make_prose(rng, rng.choice((3, 12, 60)))
            for each in task.instructions:
                if rng.random() < (1.0 if number % 2 == 0 else 0.5):
                    text = satisfy(each["kind"], each["arguments"], text, rng)
            yield task, rng.choice(DECORATIONS)(text)
    by_kind = {each["kind"]: task for task in tasks for each in task.instructions}
    for task in by_kind.values():
        yield from ((task, text) for text in (*ODD_TEXTS, *OTHER_LANGUAGES))


def explain(kind: str, arguments: dict[str, Any], text: str) -> str | None:
    """Return why the two may differ on this answer, or None."""
    if kind == "length_constraints:number_sentences" and re.search(r"[.!?]{2,}\W*$", text, re.MULTILINE):
        return "their tokenizer counts each of several marks at the end of a text, ours counts them once"
    if kind == "keywords:letter_frequency" and not arguments["letter"].isalpha():
        return "the authors' code counts a random letter where the instruction names a sign such as #"
    return None


def compare(answers: list[Answer]) -> tuple[Counter[str], dict[str, list[str]], Counter[str]]:
    """Return how many verdicts were compared and how many say yes, the unexplained differences, and the explained."""
    authors = AuthorsRules()
    counts: Counter[str] = Counter()
    differences: dict[str, list[str]] = defaultdict(list)
    explained: Counter[str] = Counter()
    for task, text in answers:
        for each in task.instructions:
            kind, arguments = each["kind"], each["arguments"]
            ours = (follows(text, kind, arguments), follows_loosely(text, kind, arguments))
            theirs = (authors.strict(text, kind, arguments), authors.loose(text, kind, arguments))
            counts[f"{kind} compared"] += 1
            counts[f"{kind} strict"] += ours[0]
            counts[f"{kind} loose"] += ours[1]
            if ours != theirs and (reason := explain(kind, arguments, text)):
                explained[reason] += 1
            elif ours != theirs:
                differences[kind].append(f"{task.id} {arguments} ours {ours}, authors' {theirs}: {text[:300]!r}")
    return counts, differences, explained


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=4, help="answers for each of the 541 prompts")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(f"NOT COMPARED WITH THE AUTHORS' CODE: no package {', '.join(missing)}; {INSTALL}", file=sys.stderr)
        return 0
    logging.disable(logging.ERROR)
    start = time.perf_counter()
    answers = list(make_answers(list(IFEval().tasks()), options.answers, options.seed))
    counts, differences, explained = compare(answers)
    kinds = sorted(key.removesuffix(" compared") for key in counts if key.endswith(" compared"))
    print(f"{'kind':48} verdicts  strict   loose  differ")
    for kind in kinds:
        compared, strict, loose = (counts[f"{kind} {what}"] for what in ("compared", "strict", "loose"))
        note = "  (authors' tokenizer, UNTRAINED, with our abbreviations)" if kind in UNTRAINED else ""
        print(f"{kind:48} {compared:8} {strict:7} {loose:7} {len(differences[kind]):7}{note}")
    total, differing = sum(counts[f"{kind} compared"] for kind in kinds), sum(map(len, differences.values()))
    seconds = time.perf_counter() - start
    print(f"{len(answers)} answers, {total} verdicts each way, {differing} differ without a reason, {seconds:.0f} s")
    for reason, count in explained.items():
        print(f"{count} differ: {reason}")
    for kind, examples in differences.items():
        for example in examples[:5]:
            print(f"\n{kind}: {example}", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
