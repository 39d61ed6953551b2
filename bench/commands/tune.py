"""`tune`: one study per model and dataset, each under the same budget, and the winner as a settings lane."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

from rich.console import Console

from bench.cells import Protocol
from bench.commands.cache import cache_in_use
from bench.commands.tune_display import TrialDisplay, written
from bench.console import say, warn
from bench.datasets.catalogue import Dataset, resolve
from bench.datasets.store import Stored, spelled_out
from bench.errors import UserError
from bench.executors import make_executor
from bench.executors.devices import resolve_devices
from bench.lanes import find_winner, winner_path
from bench.ledger import Ledger, check_writable
from bench.model import Model
from bench.planning.estimate import Forecaster
from bench.predictions import PredictionStore
from bench.reference import OWN
from bench.registry import resolve_models, scan
from bench.request import Plan, TuneRequest, add_dataset, exit_code, make_options, use_plugins
from bench.reuse import this_machine
from bench.runner import run_stream
from bench.settings import CHEAP_LANE, TUNED_LANE, parse_overrides
from bench.sizes import format_duration
from bench.splits import tuning_rule
from bench.text import counted, nearest
from bench.tuning.choosing import best, best_so_far, cheapest, front, outcomes
from bench.tuning.conclusion import importance, make_winner, write_trials
from bench.tuning.driver import Driver
from bench.tuning.sampling import SlotSampler
from bench.tuning.search import OBJECTIVES, Search, sealed_away
from bench.tuning.storage import storage_errors
from bench.tuning.study import Budget, OtherStudy, Trial, Tuning, open_tuning
from bench.tuning.winners import write_winner


def tune_request(request: TuneRequest) -> int:
    """Work through all models and datasets; returns the exit code."""
    if request.trials is None and request.hours is None:
        raise UserError("say what it may cost: --trials, --hours, or both")
    if request.hours is not None and not request.hours > 0:
        raise UserError(f"--hours must be above 0, not {request.hours:g}")
    if request.name is not None and not re.fullmatch(r"[A-Za-z0-9_.+-]+", request.name):
        raise UserError(f"--name '{request.name}' may only have letters, digits and _ . + -: files are named after it")
    with cache_in_use():
        return _Tune(request).work()


class _Tune:
    """One call of `tune`."""

    def __init__(self, request: TuneRequest) -> None:
        self.console, self.errors = Console(), Console(stderr=True)
        self.request, self.plan = request, Plan()
        self.jobs = request.jobs or 1
        self.budget = Budget(request.trials, request.hours)
        self.devices = resolve_devices(request.device)
        self.options = make_options(request)
        self.without_winner = 0

    # -- all studies -------------------------------------------------------------------------------------------------

    def work(self) -> int:
        plan = self.plan
        request = use_plugins(self.request, plan, self.errors)
        self.options = replace(self.options, paths=plan.paths)
        plan.models = resolve_models(request.models)
        warn(self.errors, *scan().broken.values())  # known now that the models have been imported
        plan.datasets = resolve(request.datasets)
        searches = self._searches(plan.models, plan.datasets)
        if request.name is not None and len(searches) > 1:
            raise UserError(f"--name is for one study, but these are {len(searches)}: name one model and one dataset")
        check_writable(request.results, "predictions", "logs", "tuning")
        for dataset in plan.datasets:
            add_dataset(plan, dataset, request.data, tuning_rule, self.console, self.errors, "name a larger graph")
            if dataset.name in plan.stored:
                plan.stored[dataset.name] = sealed_away(plan.stored[dataset.name])
        searches = [
            replace(search, data=stored.graph.fingerprint, dataset=spelled_out(search.dataset, stored))
            for search in searches
            if (stored := plan.stored.get(search.dataset.name)) is not None
        ]
        self._say_total(searches)
        for search in searches:
            try:
                self._study(search, plan.stored[search.dataset.name])
            except UserError as error:  # a matter of this study; the others go on
                plan.bad.append(f"error: {error}")
                say(self.errors, plan.bad[-1])
        return exit_code(plan, failed=self.without_winner > 0)

    def _searches(self, models: list[type[Model]], datasets: list[Dataset]) -> list[Search]:
        """What is asked for, checked before anything is opened."""
        request = self.request
        Protocol(1, request.seed, "sealed")  # refuses a seed that no split can have
        objective = self._objective()
        models = self._with_space(models)
        overrides, notes = parse_overrides(request.overrides, models)
        for note in notes:
            say(self.console, note)
        searches = [
            Search(
                model,
                dataset,
                data="",
                space_name=request.space,
                fixed=overrides[model.name],
                sampler=request.sampler,
                objective=objective,
                seed=request.seed,
                prune=len(objective) == 1 and request.sampler != "random" if request.prune is None else request.prune,
                max_epochs=request.max_epochs,
                memory_limit=self.options.memory_limit,
                time_limit=self.options.time_limit,
                machine=this_machine(self.devices[0], self.options.threads) if len(objective) > 1 else "",
            )
            for dataset in datasets
            for model in models
        ]
        for search in searches:
            _sampler(search)
        return searches

    def _objective(self) -> tuple[str, ...]:
        request = self.request
        objective = OBJECTIVES.get(request.objective.replace(" ", ""))
        if objective is None:
            known = list(OBJECTIVES)
            raise UserError(
                f"there is no objective '{request.objective}'; choose {' or '.join(known)}."
                f"{nearest(request.objective, known)}"
            )
        if request.prune and len(objective) > 1:
            raise UserError("with two objectives there is no pruning: a curve of accuracies says nothing about seconds")
        if self.jobs > 1 and len(objective) > 1:
            raise UserError("seconds of trials that run side by side say little: leave out --jobs, or --objective")
        return objective

    def _with_space(self, models: list[type[Model]]) -> list[type[Model]]:
        """The models that have the space, with a line for each that has not; where none has, it is refused later."""
        space = self.request.space
        found = [model for model in models if space in model.spaces]
        for model in models if found else ():
            if model not in found:
                say(self.errors, f"skipped: {model.name} has no space '{space}' (it has: {', '.join(model.spaces)})")
        return found or models

    def _say_total(self, searches: list[Search]) -> None:
        if len(searches) > 1:
            estimator = Forecaster(Ledger(self.request.results))
            seconds = [self._expected(search, [], estimator) for search in searches]
            known = [value for value in seconds if value is not None]
            about = f"about {sum(known) / 3600:.2g} h" if known else "an unknown time"
            unknown = (
                f" and {len(seconds) - len(known)} of unknown length" if known and len(known) < len(seconds) else ""
            )
            say(self.console, f"{len(searches)} studies of {self.budget} each: {about}{unknown}")

    def _expected(self, search: Search, trials: list[Trial], estimator: Forecaster) -> float | None:
        """Seconds that the rest of a study will take: by the trials that it has, else by what records tell."""
        guess = None if trials else estimator.seconds(search.cell({}, 0, search.name))
        return self.budget.seconds_left(trials, guess, self.jobs, search.time_limit)

    # -- one study ---------------------------------------------------------------------------------------------------

    def _study(self, search: Search, stored: Stored) -> None:
        with storage_errors():
            tuning = self._open_study(search)
            try:
                interrupted = self._run(search, stored, tuning)
                trials = tuning.trials()
                write_trials(self.request.results, search, tuning.name, self.budget, trials)
                if interrupted:
                    raise KeyboardInterrupt
                self._conclude(search, tuning, trials)
            finally:
                tuning.close()

    def _open_study(self, search: Search) -> Tuning:
        """The study of this search; where its name is taken by another one, the next of the name with a number."""
        first = self.request.name or search.name
        for number in itertools.count(1):
            name = first if number == 1 else f"{first}-{number}"
            journal = self.request.results / "tuning" / f"{name}.journal"
            try:
                sampler, url = _sampler(search), self.request.storage
                return open_tuning(name, search.identity(), sampler, search.pareto, url, journal)
            except OtherStudy as other:
                say(self.console, f"{other}; this is the study {first}-{number + 1}")
        raise AssertionError("a count has no end")

    def _run(self, search: Search, stored: Stored, tuning: Tuning) -> bool:
        """Fill the slots; whether the user ended it."""
        request, ledger = self.request, Ledger(self.request.results)
        warn(self.errors, *ledger.warnings)
        trials = tuning.trials()
        for line in self._opening_lines(search, tuning, trials, Forecaster(ledger)):
            say(self.console, line)
        executor = make_executor(request.executor, request.results / "logs", self.jobs, self.devices)
        title = f"{search.model.name} on {search.dataset.name}:"
        with TrialDisplay(self.console, title, self.budget, trials, self.jobs) as display:
            driver = Driver(search, tuning, self.budget, PredictionStore(request.results), display)
            try:
                summary = run_stream(
                    driver.cells(),
                    [search.model.name],
                    {search.dataset.name: stored},
                    self.options,
                    ledger,
                    executor,
                    driver.on_event,
                )
            finally:
                ledger.close()
                driver.close()
        return summary.interrupted

    def _opening_lines(
        self, search: Search, tuning: Tuning, trials: list[Trial], estimator: Forecaster
    ) -> Iterator[str]:
        pruning = "with pruning" if search.prune else "without pruning"
        yield (
            f"study {tuning.name}: {search.model.name} on {search.dataset.title}, {len(search.space)} settings of the "
            f"space {search.space_name}, sampler {search.sampler} {pruning}, seed {search.seed}, budget {self.budget}"
        )
        yield search.first_line
        size = tuning.sampler.size
        if size is not None and (self.budget.trials is None or size < self.budget.trials):
            yield f"the grid has {size} points: there will be no more trials than that"
        if trials:
            more = (
                ", more than asked for" if self.budget.trials is not None and len(trials) > self.budget.trials else ""
            )
            yield f"there already: {counted(len(trials), 'trial')} ({outcomes(trials)}){more}"
        left = None if self.budget.trials is None else max(0, self.budget.trials - len(trials))
        seconds = self._expected(search, trials, estimator)
        about = "unknown" if seconds is None else f"about {seconds / 3600:.2g} h"
        limit = search.time_limit
        bound = f"; --time-limit bounds it by {left * limit / 3600 / self.jobs:.2g} h" if left and limit else ""
        yield f"expected time: {about}{bound}"

    # -- what was found ----------------------------------------------------------------------------------------------

    def _conclude(self, search: Search, tuning: Tuning, trials: list[Trial]) -> None:
        seconds = sum(trial.seconds for trial in trials)
        say(self.console, f"{counted(len(trials), 'trial')} ({outcomes(trials)}) in {format_duration(seconds)}")
        top = best(trials)
        if top is None:
            self.without_winner += 1
            say(self.errors, f"no trial of {tuning.name} was completed; `why` and the ledger tell the reasons")
            return
        steps = ", ".join(f"{trial.percent} at trial {trial.slot}" for trial in best_so_far(trials))
        say(self.console, f"best so far: {steps}")
        shares = importance(tuning, trials)
        if shares:
            say(self.console, "importance: " + ", ".join(f"{name} {share:.2f}" for name, share in shares.items()))
        if search.pareto:
            self._conclude_pareto(search, tuning, trials, top)
        else:
            self._crown(search, tuning, trials, top, TUNED_LANE)

    def _conclude_pareto(self, search: Search, tuning: Tuning, trials: list[Trial], top: Trial) -> None:
        say(self.console, "no other trial is better in accuracy and seconds both:")
        for trial in front(trials):
            cost = format_duration(trial.cost or 0.0)
            say(self.console, f"  val {trial.percent}, {cost}: trial {trial.slot}, {written(trial.settings)}")
        cheap = cheapest(trials)
        assert cheap is not None  # there is a best one
        if cheap is top:
            say(self.console, "nothing cheaper comes within 0.2 points of the best")
        else:
            say(
                self.console,
                f"within 0.2 points of the best, {format_duration(cheap.cost or 0.0)} instead of "
                f"{format_duration(top.cost or 0.0)} (trial {top.slot})",
            )
        self._crown(search, tuning, trials, cheap, CHEAP_LANE)

    def _crown(self, search: Search, tuning: Tuning, trials: list[Trial], chosen: Trial, lane: str) -> None:
        path = winner_path(self.request.results, lane, search.model.name, search.dataset.name)
        earlier = (self.request.results, lane, search.model.name, search.dataset)
        before = find_winner(*earlier) if path.is_file() else None
        write_winner(path, make_winner(search, tuning.name, self.budget, trials, chosen))
        say(self.console, f"chosen: trial {chosen.slot}, val {chosen.percent}, {written(chosen.settings)}")
        if before is not None and before.found["study"] != tuning.name:
            say(self.console, f"this takes the place of what the study {before.found['study']} had found")
        say(self.console, f"{path}: {self._run_command(search, lane)}")

    def _run_command(self, search: Search, lane: str) -> str:
        """What to type for a run with what was found, with the folders and plug-ins of this call."""
        request = self.request
        words = ["python", "-m", "bench", "run", "--models", search.model.name]
        words += ["--datasets", str(search.dataset.own_file or search.dataset.name), "--settings", lane]
        if request.results != OWN:
            words += ["--results", str(request.results)]
        if request.data is not None:
            words += ["--data", str(request.data)]
        for plugin in request.plugins:
            words += ["--plugin", plugin]
        return shlex.join(words)


def _sampler(search: Search) -> SlotSampler:
    return SlotSampler(search.sampler, search.seed, search.space, search.first)
