"""The script of an AiiDA user: a computer whose scheduler is HyperQueue, and twenty calculations on it."""

import sys
from pathlib import Path

from aiida import engine, load_profile, orm
from aiida.manage import get_config
from aiida.storage.sqlite_temp import SqliteTempBackend

COUNT = 20


class Many(engine.WorkChain):
    """Runs all calculations at once, because AiiDA would wait for each single one."""

    @classmethod
    def define(cls, spec):
        super().define(spec)
        spec.input("code", valid_type=orm.AbstractCode)
        spec.outline(cls.submit_all, cls.look)
        spec.output("sum", valid_type=orm.Int)

    def submit_all(self):
        from aiida.plugins import CalculationFactory

        for x in range(COUNT):
            builder = CalculationFactory("core.arithmetic.add").get_builder()
            builder.code, builder.x, builder.y = self.inputs.code, orm.Int(x), orm.Int(x)
            builder.metadata.options.resources = {"num_cpus": 1, "memory_mb": 64}
            builder.metadata.options.max_wallclock_seconds = 2 if x == 9 else 600
            builder.metadata.options.prepend_text = f"echo {x} >> {Path.cwd()}/runs; " + (
                "exit 3" if x == 7 else "sleep 1000" if x in (9, 10) else "sleep 1"
            )
            self.to_context(**{f"calculation_{x}": self.submit(builder)})

    def look(self):
        ended = {x: self.ctx[f"calculation_{x}"] for x in range(COUNT)}
        print("FAILED", sorted(x for x, node in ended.items() if not node.is_finished_ok))
        self.out("sum", orm.Int(sum(node.outputs.sum.value for node in ended.values() if node.is_finished_ok)).store())


def main():
    # Without a message broker, AiiDA checks only once a minute which jobs have ended.
    config = get_config(create=True)
    config.set_option("runner.poll.interval", 1)
    config.set_option("transport.task_retry_initial_interval", 1)
    load_profile(SqliteTempBackend.create_profile("hq", filepath=str(Path("storage").absolute())), allow_switch=True)
    user = orm.User.collection.get_default()
    assert user is not None
    work = Path("work").absolute()
    work.mkdir(exist_ok=True)
    computer = orm.Computer(
        label="here", hostname="localhost", transport_type="core.local", scheduler_type="hyperqueue", workdir=str(work)
    ).store()
    computer.configure(user=user, safe_interval=0, use_login_shell=False)
    computer.set_minimum_job_poll_interval(0.5)
    code = orm.InstalledCode(label="bash", computer=computer, filepath_executable="/bin/bash").store()
    result, node = engine.run_get_node(Many, code=code)
    print("SUM", result["sum"].value if "sum" in result else None, "EXIT", node.exit_status)


if __name__ == "__main__":
    # AiiDA loads the class again by the name of its module.
    sys.path.insert(0, str(Path(__file__).parent))
    import aiida_script

    aiida_script.main()
