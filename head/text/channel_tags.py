"""How constrained calls look in the formats that write a call argument by argument, and Harmony."""

from __future__ import annotations

import re

from head.text.channel_arguments import ByArgument, GemmaArguments, Literals, Tagged
from head.text.channel_structural import Around


def _parameters(begin: str, close: str, after: str = "\n") -> Tagged:
    return Tagged(begin, close, after, never=(close,), apart=(close,))


#: Arguments on lines of their own. Bare text has nothing in it that would end it.
LINES_CALL = ByArgument(
    "<tool_call>\n<function={name}>\n",
    Tagged(
        "<parameter={key}>\n",
        "\n</parameter>",
        "\n",
        free=r"/(?s:.*)/ & ~/(?s:.*)\n<(?:\/function>|parameter=)(?s:.*)/"
        r" & ~/<(?:\/function>|\/parameter>|parameter=)(?s:.*)/",
        never=("\n</parameter>", "\n<parameter=", "\n</function>"),
        keys=re.compile(r"[^<>\n]+"),
    ),
    "</function>\n</tool_call>",
)
_ARG_VALUES = ("<arg_value>", "</arg_value>")
GLM_CALL = ByArgument(
    "<tool_call>{name}\n",
    Tagged(
        "<arg_key>{key}</arg_key>\n<arg_value>",
        "</arg_value>",
        "\n",
        free="/(?s:.*)/ & ~/(?s:.*)<arg_value>(?s:.*)/",
        never=_ARG_VALUES,
        apart=_ARG_VALUES,
    ),
    "</tool_call>",
)
GEMMA_CALL = ByArgument("<|tool_call>call:{name}{", GemmaArguments(), "}<tool_call|>")
HARMONY_CALL = Around("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>", "")
PYTHON_CALL = ByArgument("{name}(", Literals(), ")")
DSML_CALL = ByArgument(
    '<｜DSML｜invoke name="{name}">\n',
    Tagged(
        '<｜DSML｜parameter name="{key}" string="true">',
        "</｜DSML｜parameter>",
        "\n",
        '<｜DSML｜parameter name="{key}" string="false">',
        never=("</｜DSML｜parameter>",),
        apart=("</｜DSML｜parameter>",),
    ),
    "</｜DSML｜invoke>\n",
)
_K3_CLOSE = "<|close|>argument<|sep|>"
KIMI3_CALL = ByArgument(
    '<|open|>call tool="{name}" index="1"<|sep|>',
    Tagged(
        '<|open|>argument key="{key}" type="string"<|sep|>',
        _K3_CLOSE,
        json_begin='<|open|>argument key="{key}" type="{type}"<|sep|>',
        never=(_K3_CLOSE,),
        apart=("<|close|>",),
    ),
    "<|close|>call<|sep|>",
)
SEED_CALL = ByArgument(
    "<seed:tool_call>\n<function={name}>\n",
    Tagged(
        "<parameter={key}>",
        "</parameter>",
        "\n",
        # What begins with a line's end is read as a value on lines of its own.
        free=r"/(?s:[^\n].*)?/",
        never=("</parameter>",),
        apart=("</parameter>",),
    ),
    "</function>\n</seed:tool_call>",
)
MINIMAX_CALL = ByArgument(
    '<invoke name="{name}">\n',
    _parameters('<parameter name="{key}">', "</parameter>"),
    "</invoke>\n",
)
MINICPM_CALL = ByArgument(
    '<function name="{name}">',
    Tagged(
        '<param name="{key}">',
        "</param>",
        free=r"/(?s:.*)/ & ~/<!\[CDATA\[(?s:.*)/",
        never=("</param>", "\n<![CDATA["),
        apart=("</param>",),
    ),
    "</function>",
)
