"""Questions that a small model can answer with a full cache, so that what compression takes away shows.

Prompts are completions, not chats: the answer begins where the prompt ends, and has several tokens, since the first
one alone says little. Sample i of a task is drawn from a generator of its own, seeded by seed, task, context and i:
it is the same whether the samples before it were made or not. Depths go through ten equal bands in turn, by chance
within each.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from . import haystack

CITIES = (
    "Lisbon", "Oslo", "Madrid", "Berlin", "Cairo", "Tokyo", "Paris", "Rome", "Vienna", "Dublin", "Prague", "Athens",
    "Warsaw", "Moscow", "Delhi", "Lima", "Quito", "Havana", "Boston", "Denver", "Chicago", "Seattle", "Toronto",
    "Sydney", "Geneva", "Munich", "Milan", "Naples", "Seville", "Porto")
NAMES = (
    "Alice", "Bob", "Carol", "David", "Emma", "Frank", "Grace", "Henry", "Irene", "Jack", "Karen", "Leo", "Maria",
    "Nathan", "Olivia", "Peter", "Rachel", "Simon", "Tina", "Victor", "Wendy", "Xavier", "Yvonne", "Zoe")
NOUNS = (
    "amber", "table", "river", "piano", "cloud", "garden", "window", "copper", "lantern", "forest", "bridge",
    "candle", "mirror", "silver", "marble", "velvet", "pepper", "basket", "ladder", "rocket", "pocket", "button",
    "engine", "saddle", "tunnel", "feather", "hammer", "island", "jacket", "kettle", "needle", "orange", "pencil",
    "rabbit", "shovel", "ticket", "turtle", "violin", "wagon", "yellow", "zebra", "anchor", "barrel", "carpet",
    "dragon", "eagle", "falcon", "guitar", "harbor", "insect", "jungle", "ketchup", "lemon", "magnet", "napkin",
    "ocean", "parrot", "quartz", "ribbon", "salmon", "tomato", "umbrella", "vessel", "walnut", "circle", "desert",
    "elephant", "flower", "giraffe", "helmet", "iceberg", "jaguar", "kitchen", "leopard", "mountain", "noodle",
    "octopus", "penguin", "quilt", "rainbow", "scooter", "trumpet", "unicorn", "volcano", "whistle")
LABELS = ("blicket", "dax", "wug", "fep", "zorp", "toma", "kiki", "bouba")
BANDS = 10  # of depths
CONTINUATION = 96  # tokens of plain text that are predicted

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Sample:
    """One question.

    Attributes:
        context: tokens before the question.
        question: tokens of the question; the last one is run again on the compressed cache.
        answer: tokens of the right answer.
        depth: where in the context the answer stands, 0 to 1; of plain text 0.
    """

    context: list[int]
    question: list[int]
    answer: list[int]
    depth: float


@dataclass(frozen=True)
class Needle:
    """A planted sentence, the question about it, and how the answer begins and goes on."""

    sentence: str
    question: str
    cue: str
    answer: str


def _digits(rng: random.Random) -> str:
    return "".join(rng.choice("0123456789") for _ in range(5))


def _number(rng: random.Random) -> Needle:
    city, value = rng.choice(CITIES), _digits(rng)
    return Needle(f"The magic number of {city} is {value}.", f"What is the magic number of {city}?",
                  f"The magic number of {city} is", value)


def _numrev(rng: random.Random) -> Needle:
    """The answer stands before its key: settings that keep what follows a hit fail here."""
    city, value = rng.choice(CITIES), _digits(rng)
    return Needle(f"{value} is the magic number of {city}.", f"What is the magic number of {city}?",
                  f"The magic number of {city} is", value)


def _fact(rng: random.Random) -> Needle:
    name, (a, b, c, d) = rng.choice(NAMES), rng.sample(NOUNS, 4)
    value = f"a {a} next to a {b} and one {c} under the {d}"
    return Needle(f"In the house of {name} there is {value}.", f"What is in the house of {name}?",
                  f"In the house of {name} there is", value)


NEEDLES = {"number": _number, "fact": _fact, "numrev": _numrev}
TASKS = ("number", "fact", "numrev", "icl", "perplexity")


def _planted(needle: Needle, texts: list[str], rng: random.Random, context: int, band: int,
             encode: Encode) -> tuple[str, str, str, float]:
    straw = haystack.sentences(texts, rng, context, lambda text: len(encode(text)))
    place = int((band + rng.random()) / BANDS * len(straw))
    straw.insert(place, needle.sentence + " ")
    return ("".join(straw), f"\n\nQuestion: {needle.question}\nAnswer: {needle.cue}", " " + needle.answer,
            place / len(straw))


def _labels(rng: random.Random, context: int, band: int, encode: Encode) -> tuple[str, str, str, float]:
    """A list of words with made-up labels; one of them is looked up."""
    labels, lines, total = rng.sample(LABELS, 4), [], 0
    for word in rng.sample(NOUNS, len(NOUNS)):
        pair = word, rng.choice(labels)
        total += len(encode(f"{pair[0]} -> {pair[1]}\n"))
        if total > context:
            break
        lines.append(pair)
    if not lines:
        raise ValueError(f"no line fits into {context} tokens")
    place = int((band + rng.random()) / BANDS * len(lines))
    return ("".join(f"{word} -> {label}\n" for word, label in lines), f"\n{lines[place][0]} ->", " " + lines[place][1],
            place / len(lines))


def check_context(task: str, texts: list[str], context: int) -> None:
    """Find out before anything runs whether the texts have so many tokens in a row.

    Raises:
        ValueError: none of them has.
    """
    longest = max(map(len, texts))
    spare = CONTINUATION * haystack.CHARACTERS_PER_TOKEN if task == "perplexity" else haystack.MARGIN
    if task != "icl" and context * haystack.CHARACTERS_PER_TOKEN + spare >= longest:
        most = max(0, (longest - spare - 1) // haystack.CHARACTERS_PER_TOKEN)
        raise ValueError(f"--context {context}: the longest text has {longest} characters, which do for {most} tokens "
                         f"of {task}; --text names other texts")


def make(task: str, texts: list[str], context: int, seed: int, index: int, encode: Encode,
         prefix: list[int] | None = None) -> Sample:
    """A sample of a task.

    Args:
        task: one of TASKS.
        texts: haystacks.
        context: tokens of the haystack, at most; of plain text exactly.
        seed: of the run.
        index: of the sample, from 0.
        encode: from text to tokens, without any added by itself.
        prefix: tokens that the model wants first.
    """
    rng = random.Random(f"{seed}/{task}/{context}/{index}")
    begin = list(prefix or [])
    if task == "perplexity":
        want = context + CONTINUATION
        tokens = encode(haystack.passage(texts, rng, want * haystack.CHARACTERS_PER_TOKEN))
        if len(tokens) < want + 1:
            raise ValueError(f"a passage has {len(tokens)} tokens, {want + 1} are needed")
        return Sample(begin + tokens[:context], [tokens[context]], tokens[context + 1 : want + 1], 0.0)
    if task == "icl":
        text, question, answer, depth = _labels(rng, context, index % BANDS, encode)
    elif task in NEEDLES:
        text, question, answer, depth = _planted(NEEDLES[task](rng), texts, rng, context, index % BANDS, encode)
    else:
        raise ValueError(f"task {task!r} is none of {', '.join(TASKS)}")
    return Sample(begin + encode(text), encode(question), encode(answer), depth)
