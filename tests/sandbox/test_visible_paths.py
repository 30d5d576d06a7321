"""What a guest sees of the machine: the interpreter and the chosen packages, and nothing else that the host has
loaded."""

from __future__ import annotations

import sysconfig

import numpy  # noqa: F401 - the host has it loaded, which must show nowhere
import pytest

from rollbook.sandbox import Sandbox, SandboxError
from rollbook.sandbox.isolation import make_configuration

SITE = sysconfig.get_path("platlib")


def test_what_the_host_has_loaded_is_not_shown() -> None:
    places = make_configuration([])["places"]
    assert places
    assert not any("numpy" in place or place.startswith(SITE) for place in places)
    with Sandbox(size=1) as box:
        result = box.run_sync("import numpy")
        assert result.error
        assert result.error.type == "ModuleNotFoundError"
        assert box.run_sync(f"import os\nos.path.exists({SITE!r}) and os.listdir({SITE!r})").value in ("[]", "False")


def test_of_the_packages_only_the_chosen_are_shown() -> None:
    with Sandbox(size=1, packages=["numpy"]) as box:
        seen = f"import os\n[name for name in ('numpy', 'msgspec', 'pytest') if os.path.exists(f'{SITE}/{{name}}')]"
        assert box.run_sync(seen).value == "['numpy']"
        assert box.run_sync("import numpy.linalg\nimport numpy.polynomial.hermite_e\nimport msgspec").error
        assert box.run_sync("import numpy.polynomial.hermite_e as h\nh.__name__").status == "ok"


def test_what_a_chosen_package_imports_is_shown_with_it() -> None:
    pytest.importorskip("sympy")
    with Sandbox(size=1, packages=["sympy"]) as box:
        assert (
            box.run_sync("import mpmath.calculus.inverselaplace\nimport sympy\nstr(sympy.sqrt(8))").value
            == "'2*sqrt(2)'"
        )


def test_the_standard_library_works_where_it_needs_libraries() -> None:
    code = "import ssl, sqlite3, lzma, bz2, zlib, ctypes, decimal, hashlib\nhashlib.sha256(b'').hexdigest()[:4]"
    with Sandbox(size=1) as box:
        assert box.run_sync(code).value == "'e3b0'"


def test_a_package_that_is_not_there_is_an_error_that_names_it() -> None:
    with (
        pytest.raises(SandboxError, match="no_such_thing cannot be loaded: ModuleNotFoundError"),
        Sandbox(packages=["no_such_thing"]),
    ):
        pass
