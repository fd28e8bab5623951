"""The keyring: an encrypted value is decrypted only with its key, for its tenant and name, and unchanged."""

from __future__ import annotations

import base64
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runlane.access.keyring import Keyring, key_id_of, new_key
from runlane.errors import InvalidSettings, NoSecretKey, SecretUnreadable
from runlane.redaction import LOGS
from runlane.settings import EMBEDDED_KEY_FILE, Settings, load_settings, parse_secret_keys

URL = "sqlite:///elsewhere.db"
VALUE = "a value with ümläuts"


def ring(*keys: str) -> Keyring:
    return Keyring(load_settings(database_url=URL, secret_key=",".join(keys) or None))


def test_a_sealed_value_opens_and_shows_nothing() -> None:
    keys = ring(new_key())
    key_id, sealed = keys.seal("acme", "TOKEN", VALUE)
    assert keys.key_ids == [key_id]
    assert keys.open("acme", "TOKEN", sealed) == VALUE
    assert VALUE.encode() not in base64.b64decode(sealed)
    assert keys.seal("acme", "TOKEN", VALUE)[1] != sealed


@pytest.mark.parametrize(("tenant", "name"), [("other", "TOKEN"), ("acme", "TOKEN2"), ("acm", "eTOKEN")])
def test_a_value_does_not_open_elsewhere(tenant: str, name: str) -> None:
    keys = ring(new_key())
    _, sealed = keys.seal("acme", "TOKEN", VALUE)
    with pytest.raises(SecretUnreadable, match="its row was changed, or copied"):
        keys.open(tenant, name, sealed)


def test_no_bit_of_it_can_be_changed() -> None:
    keys = ring(new_key())
    raw = base64.b64decode(keys.seal("acme", "TOKEN", VALUE)[1])
    for at in range(len(raw)):
        changed = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        with pytest.raises(SecretUnreadable):
            keys.open("acme", "TOKEN", base64.b64encode(changed).decode())
    for cut in ("", "A", "????", base64.b64encode(raw[:19]).decode(), base64.b64encode(raw[:-1]).decode()):
        with pytest.raises(SecretUnreadable):
            keys.open("acme", "TOKEN", cut)


def test_the_first_key_encrypts_and_all_decrypt() -> None:
    old, new = new_key(), new_key()
    old_id, sealed = ring(old).seal("acme", "TOKEN", VALUE)
    both = ring(new, old)
    assert both.open("acme", "TOKEN", sealed) == VALUE
    assert both.seal("acme", "TOKEN", VALUE)[0] == key_id_of(parse_secret_keys(new)[0]) != old_id
    with pytest.raises(SecretUnreadable, match=f"encrypted with the key {old_id}") as caught:
        ring(new).open("acme", "TOKEN", sealed)
    assert old not in str(caught.value)


def test_a_key_is_base64_or_hex() -> None:
    raw = bytes(range(0xD0, 0xF0))
    forms = [
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw).decode().rstrip("="),
        raw.hex(),
        raw.hex().upper(),
    ]
    assert parse_secret_keys("\n".join(forms)) == [raw] * 4
    for wrong in ("", "secret-and-wrong", "a" * 63, base64.b64encode(raw + b"x").decode()):
        with pytest.raises(ValueError, match="runlane secrets new-key") as caught:
            parse_secret_keys(wrong)
        assert not wrong or wrong not in str(caught.value)


def test_without_a_key_nothing_is_sealed() -> None:
    with pytest.raises(NoSecretKey, match="runlane secrets new-key"):
        ring().seal("acme", "TOKEN", VALUE)
    assert ring().key_ids == []


def test_a_key_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    file, old, new = tmp_path / "keys", new_key(), new_key()
    file.write_text(f"{old}\n")
    keys = Keyring(load_settings(database_url=URL, secret_key_file=file))
    old_id, sealed = keys.seal("acme", "TOKEN", VALUE)
    file.write_text(f"{new}\n{old}\n")
    assert keys.seal("acme", "TOKEN", VALUE)[0] != old_id
    assert keys.open("acme", "TOKEN", sealed) == VALUE
    assert LOGS.clean(f"{old} {new}") == "[redacted] [redacted]"
    file.write_text("secret-and-wrong and more\n")
    with pytest.raises(InvalidSettings, match="is not valid: a key must be 32 bytes") as caught:
        keys.seal("acme", "TOKEN", VALUE)
    assert "secret-and-wrong" not in str(caught.value)
    file.unlink()
    with pytest.raises(InvalidSettings, match="does not exist"):
        keys.seal("acme", "TOKEN", VALUE)


def test_both_a_key_and_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="both set"):
        load_settings(secret_key=new_key(), secret_key_file=tmp_path / "keys")


def test_beside_the_embedded_file_a_key_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNLANE_DATABASE_URL", raising=False)
    assert Keyring(Settings()).key_ids == []
    assert not EMBEDDED_KEY_FILE.exists()

    def seal(number: int) -> str:
        return Keyring(Settings()).seal("t", f"N{number}", VALUE)[0]

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(seal, range(16)))
    assert len(set(made)) == 1
    assert stat.S_IMODE(EMBEDDED_KEY_FILE.stat().st_mode) == 0o600
    assert sorted(file.name for file in Path(".runlane").iterdir()) == [".gitignore", "secret.key"]
    assert Keyring(Settings()).key_ids == [made[0]]


def test_a_key_is_shown_nowhere() -> None:
    key = new_key()
    settings = load_settings(database_url=URL, secret_key=key)
    keys = Keyring(settings)
    keys.seal("acme", "TOKEN", VALUE)
    assert key not in f"{settings!r} {settings} {keys!r} {vars(keys)!r}"
