# Spack 1.0 or newer: copy this directory to packages/ of a repository of yours (`spack repo create`), then `spack install hq`.
from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class Hq(Package):
    """Distributed runtime for very many tasks: server, workers and command line in one binary."""

    homepage = "https://example.org/hq"
    url = "https://example.org/hq/releases/hq-0.1.0.tar.gz"
    git = "https://example.org/hq.git"

    license("MIT")

    version("main", branch="main")

    depends_on("c", type="build")
    depends_on("rust@1.95:", type="build")

    phases = ["build", "install"]

    def build(self, spec, prefix):
        cargo = which("cargo", required=True)
        cargo("build", "--locked", "--profile", "dist", "--package", "hq-cli", "--bin", "hq")

    def install(self, spec, prefix):
        mkdirp(prefix.bin)
        install(join_path("target", "dist", "hq"), prefix.bin)
        hq = Executable(prefix.bin.hq)
        hq("generate-man", prefix.share.man.man1)

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(self.prefix.bin.hq)("run", "--array", "1-3", "--", "true")
