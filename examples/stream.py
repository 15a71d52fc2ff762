"""Ask a model and print its answer as it comes, then what it took.

python examples/stream.py smollm2 "Why is the sky blue?"
"""

import sys

import superfluid


def main(model: str, question: str) -> None:
    messages = [{"role": "user", "content": question}]
    with superfluid.connect() as client:
        call = client.chat(model, messages, max_new=80, temperature=0.0)
        with call.stream() as stream:
            for event in stream:
                if event.type == "token":
                    print(event.text, end="", flush=True)
        answer = call.result()
    print(f"\n\n{answer.usage.completion} tokens from {answer.node}, {answer.finish}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/stream.py MODEL QUESTION")
    main(*sys.argv[1:])
