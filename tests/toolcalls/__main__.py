"""`make report-toolcalls`: how many recorded outputs of models are split as they have to be."""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter

from tests.toolcalls.judge import exact, in_pieces, miss, split
from tests.toolcalls.wheel import WheelMissing, outputs


def main() -> int:
    """1 when the pieces make a difference, or the outputs can not be had."""
    parser = argparse.ArgumentParser(prog="tests.toolcalls", description=__doc__)
    parser.add_argument("--chunkings", type=int, default=22, help="random cuts of each output")
    parser.add_argument("--seed", type=int, default=1, help="from which they are drawn")
    options = parser.parse_args()
    try:
        found = outputs()
    except WheelMissing as error:
        print(f"toolcalls: skipped: {error}", file=sys.stderr)
        return 1
    of: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    chunked: Counter[str] = Counter()
    to_the_letter: Counter[str] = Counter()
    differs = False
    for output in found:
        rng = random.Random(f"{options.seed}:{output.name}")
        at_once = split(output, [output.raw])
        pieces = [split(output, in_pieces(output.raw, rng)) for _ in range(options.chunkings)]
        of[output.family] += 1
        whole[output.family] += not (wrong := miss(output, at_once))
        chunked[output.family] += not any(miss(output, each) for each in pieces)
        to_the_letter[output.family] += not wrong and exact(output, at_once)
        if wrong:
            print(f"miss: {output.name}: {wrong[:300]}")
        if any(each != at_once for each in pieces):
            differs = True
            print(f"differs by its pieces: {output.name}")
    print(f"{'family':<14}{'outputs':>8}{'whole':>8}{'chunked':>9}{'to the letter':>15}")
    for family in of:
        print(
            f"{family:<14}{of[family]:>8}{whole[family]:>8}{chunked[family]:>9}"
            f"{to_the_letter[family]:>15}"
        )
    tried = len(found) * options.chunkings
    print(f"{tried} random chunkings, seed {options.seed}")
    print(f"toolcalls: whole={whole.total()} chunked={chunked.total()} of={of.total()}")
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
