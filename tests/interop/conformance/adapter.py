"""Runs one script of tlsfuzzer: adapter.py [--ecdhe] FOLDER SCRIPT ARGUMENTS...

FOLDER is a clone of tlsfuzzer. Most scripts for TLS 1.2 speak suites that Sealane does not offer: key exchange with RSA or DHE, and
CBC. Against Sealane they would all end with the same `handshake_failure`, and test nothing. With `--ecdhe`, such a script runs with
ECDHE and AES-GCM instead:

- the names of the suites stand for suites that Sealane offers;
- a ClientHello of TLS 1.2 that offers one of them has the extensions that ECDHE needs, if the script has none, and curves beside groups
  of finite fields;
- after Certificate, the client accepts ServerKeyExchange, if the script does not expect it;
- a ServerHello need not repeat the extension ec_point_formats, which rustls does not send. What the script is about comes after it.

Everything else in a script stays as it is. Scripts that have very many cases take some of them at random: with the same seed each time,
these are the same cases in each run.
"""

import os
import random
import runpy
import sys

# What a suite of a script stands for.
RSA_128 = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
RSA_256 = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
ECDSA_128 = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
# RFC 7919 §8.2.
FINITE_FIELDS = range(256, 512)
SUITES = {
    "TLS_RSA_WITH_AES_128_CBC_SHA": RSA_128,
    "TLS_RSA_WITH_AES_128_CBC_SHA256": RSA_128,
    "TLS_RSA_WITH_AES_128_GCM_SHA256": RSA_128,
    "TLS_RSA_WITH_AES_256_CBC_SHA": RSA_256,
    "TLS_RSA_WITH_AES_256_CBC_SHA256": RSA_256,
    "TLS_RSA_WITH_AES_256_GCM_SHA384": RSA_256,
    "TLS_DHE_RSA_WITH_AES_128_CBC_SHA": RSA_128,
    "TLS_DHE_RSA_WITH_AES_128_CBC_SHA256": RSA_128,
    "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256": RSA_128,
    "TLS_DHE_RSA_WITH_AES_256_CBC_SHA": RSA_256,
    "TLS_DHE_RSA_WITH_AES_256_CBC_SHA256": RSA_256,
    "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384": RSA_256,
    "TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": RSA_128,
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": RSA_128,
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": RSA_256,
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384": RSA_256,
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": ECDSA_128,
}


def use_ecdhe():
    """Changes the libraries before a script is loaded."""
    from tlslite.constants import CipherSuite, ExtensionType, GroupName, SignatureScheme
    from tlslite.extensions import (
        SignatureAlgorithmsCertExtension,
        SignatureAlgorithmsExtension,
        SupportedGroupsExtension,
    )
    from tlsfuzzer import expect, messages, runner

    for name, stands_for in SUITES.items():
        setattr(CipherSuite, name, getattr(CipherSuite, stands_for))
    ours = {getattr(CipherSuite, name) for name in SUITES.values()}
    algorithms = [
        SignatureScheme.rsa_pss_rsae_sha256,
        SignatureScheme.rsa_pss_rsae_sha384,
        SignatureScheme.rsa_pss_rsae_sha512,
        SignatureScheme.rsa_pkcs1_sha256,
        SignatureScheme.rsa_pkcs1_sha384,
        SignatureScheme.rsa_pkcs1_sha512,
        SignatureScheme.ecdsa_secp256r1_sha256,
        SignatureScheme.ecdsa_secp384r1_sha384,
    ]
    needed = {
        ExtensionType.supported_groups: lambda: SupportedGroupsExtension().create(
            [GroupName.secp256r1, GroupName.x25519]
        ),
        ExtensionType.signature_algorithms: lambda: SignatureAlgorithmsExtension().create(algorithms),
        ExtensionType.signature_algorithms_cert: lambda: SignatureAlgorithmsCertExtension().create(algorithms),
    }

    make_hello = messages.ClientHelloGenerator.__init__

    def hello(self, ciphers=None, extensions=None, *rest, **named):
        ssl2 = named.get("ssl2", False)
        tls13 = extensions and ExtensionType.supported_versions in extensions
        if not ssl2 and not tls13 and ours.intersection(ciphers or []):
            # In front: scripts that change bytes count them from the end.
            added = {kind: make() for kind, make in needed.items() if kind not in (extensions or {})}
            groups = (extensions or {}).get(ExtensionType.supported_groups)
            # Some scripts write the bytes of an extension themselves.
            listed = getattr(groups, "groups", None)
            if listed and all(group in FINITE_FIELDS for group in listed):
                curves = [GroupName.secp256r1, GroupName.x25519]
                added[ExtensionType.supported_groups] = SupportedGroupsExtension().create(curves + listed)
                extensions = {kind: ext for kind, ext in extensions.items() if kind != ExtensionType.supported_groups}
            extensions = {**added, **(extensions or {})}
        # A suite is listed once.
        if ciphers is not None:
            ciphers = list(dict.fromkeys(ciphers)) if ours.intersection(ciphers) else ciphers
        make_hello(self, ciphers, extensions, *rest, **named)

    messages.ClientHelloGenerator.__init__ = hello

    make_server_hello = expect.ExpectServerHello.__init__

    def server_hello(self, extensions=None, *rest, **named):
        # `None`: the extension must be there, whatever it says.
        if extensions and extensions.get(ExtensionType.ec_point_formats, False) is None:
            extensions = {kind: value for kind, value in extensions.items() if kind != ExtensionType.ec_point_formats}
        make_server_hello(self, extensions, *rest, **named)

    expect.ExpectServerHello.__init__ = server_hello

    make_runner = runner.Runner.__init__

    def run(self, conversation):
        accept_key_exchange(conversation, expect, set())
        make_runner(self, conversation)

    runner.Runner.__init__ = run


def accept_key_exchange(node, expect, seen):
    """Inserts ServerKeyExchange after each Certificate of TLS 1.2 that no other message of a key exchange follows."""
    while node is not None and id(node) not in seen:
        seen.add(id(node))
        accept_key_exchange(node.next_sibling, expect, seen)
        if type(node) is expect.ExpectCertificate:
            end = node
            if isinstance(end.child, expect.ExpectCertificateStatus):
                end = end.child
            if type(end.child) in (expect.ExpectServerHelloDone, expect.ExpectCertificateRequest):
                between = expect.ExpectServerKeyExchange()
                between.child = end.child
                end.child = between
        node = node.child


def main():
    """Runs the script as if it had been started itself."""
    arguments = sys.argv[1:]
    adapt = arguments[0] == "--ecdhe"
    if adapt:
        arguments = arguments[1:]
    folder, script = arguments[0], arguments[1]
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv = [script] + arguments[2:]
    random.seed(script)
    if adapt:
        use_ecdhe()
    runpy.run_path(os.path.join(folder, "scripts", script), run_name="__main__")


main()
