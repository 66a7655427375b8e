"""A client with a wrong token could not be found.

Did: connected with a token that another key had signed, at the default log level.
Saw: a warning that "a client cannot log in", without an address.
Expected: the warning names the address, and a flood of such logins is still one warning a minute.
"""

from __future__ import annotations

import urllib.error
import urllib.request

import jwt
import pytest

from tests.strangers.conftest import Locked


def test_the_warning_names_the_address(locked: Locked) -> None:
    wrong = jwt.encode({"sub": "a-admin"}, bytes(32), "HS256")
    headers = {"Authorization": f"Bearer {wrong}"}
    for _ in range(20):
        request = urllib.request.Request(f"{locked.web_url}/admin/v2/clusters", headers=headers)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request, timeout=30)
    log = locked.log_path.read_text()
    assert log.count("a client at 127.0.0.1 cannot log in (signature)") == 1
    assert wrong not in log
