"""`format` of JSON Schema as patterns: each format that is honoured, exactly or a little narrower.

Validators differ in what they let pass; a text of these patterns passes all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
#: Years with a 29th of February: divisible by 4, and by 400 when by 100.
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
#: No leap seconds: whether there is one depends on the date, and few validators know.
_TIME = (
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?"
    "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_CLOCK = "(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DAYS = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_DURATION = f"P(?:[0-9]+W|T{_CLOCK}|{_DAYS}(?:T{_CLOCK})?)"
#: At most 63 characters, and no "--", which is kept for encoded names.
_LABEL = "[A-Za-z0-9]{1,20}(?:-[A-Za-z0-9]{1,20}){0,2}"
_HOSTNAME = f"{_LABEL}(?:\\.{_LABEL}){{0,3}}"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_EMAIL = f"{_ATOM}{{1,20}}(?:\\.{_ATOM}{{1,20}}){{0,2}}@{_HOSTNAME}"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = f"(?:{_OCTET}\\.){{3}}{_OCTET}"
_HEX = "[0-9A-Fa-f]"
_UUID = f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"


def _ipv6() -> str:
    """Eight groups, or fewer around one `::` that stands for at least two."""
    group = f"{_HEX}{{1,4}}"
    forms = [f"(?:{group}:){{7}}{group}"]
    for before in range(7):
        head = f"{group}(?::{group}){{{before - 1}}}" if before > 1 else group * before
        most_after = 6 - before
        tail = f"(?:{group}(?::{group}){{0,{most_after - 1}}})?" if most_after else ""
        forms.append(f"{head}::{tail}")
    return f"(?:{'|'.join(forms)})"


#: Characters of a URI's parts, RFC 3986: unreserved and sub-delims, or a percent-encoded byte.
_PCT = f"%{_HEX}{{2}}"
_REG_NAME = f"(?:[A-Za-z0-9._~!$&'()*+,;=-]|{_PCT})+"
_PCHAR = f"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|{_PCT})"
_AFTER = f"(?:\\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_URI = (
    f"[A-Za-z][A-Za-z0-9+.-]*:(?://{_REG_NAME}(?::[0-9]{{1,4}})?(?:/{_PCHAR}*)*"
    f"|{_PCHAR}+(?:/{_PCHAR}*)*){_AFTER}"
)

#: From a format's name to what the whole text must match, in Rust's syntax.
FORMATS: Mapping[str, str] = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "duration": f"^{_DURATION}$",
    "email": f"^{_EMAIL}$",
    "hostname": f"^{_HOSTNAME}$",
    "ipv4": f"^{_IPV4}$",
    "ipv6": f"^{_ipv6()}$",
    "uuid": f"^{_UUID}$",
    "uri": f"^{_URI}$",
}
