"""A model that may call a Python function; what it returns is answered to the model.

python examples/tools.py qwen3 "What time is it in Oslo?"
"""

import sys
from datetime import UTC, datetime, timedelta

import superfluid


def time_in(city: str, hours_from_utc: int) -> str:
    """The time in a city now.

    Args:
        city: its name.
        hours_from_utc: how many hours its clocks are ahead of UTC.
    """
    there = datetime.now(UTC) + timedelta(hours=hours_from_utc)
    return f"It is {there:%H:%M} in {city}."


def main(model: str, question: str) -> None:
    with superfluid.connect() as client:
        messages = [{"role": "user", "content": question}]
        call = client.chat(model, messages, tools=[time_in], max_new=200)
        run = call.run_tools(max_rounds=3)
        for result in run.results:
            print(f"{result.call.name}({result.call.arguments}) = {result.content}")
        print(run.text.strip())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/tools.py MODEL QUESTION")
    main(*sys.argv[1:])
