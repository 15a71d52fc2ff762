"""Several questions at once over one connection; the fleet answers them side by side.

python examples/many_at_once.py smollm2 "Name a river." "Name a colour." "Name a planet."
"""

import sys

import superfluid


def main(model: str, *questions: str) -> None:
    with superfluid.connect() as client:
        calls = [
            client.chat(model, [{"role": "user", "content": question}], max_new=40)
            for question in questions
        ]
        for question, call in zip(questions, calls, strict=True):
            answer = call.result()
            print(f"{question}  ({answer.node})\n{answer.text.strip()}\n")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python examples/many_at_once.py MODEL QUESTION...")
    main(*sys.argv[1:])
