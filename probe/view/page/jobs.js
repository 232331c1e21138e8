// Jobs of a server of heartbeats: each with its ranks, the worst of them, findings. It is asked again and again.
import { Source, json } from "./api.js";
import { Chart, line } from "./chart.js";
import { button, element, parsed, table, text } from "./dom.js";
import { colour } from "./palette.js";
import { spoken, t } from "./words.js";

const EVERY = 2000; // milliseconds
const LONGEST = 10_000;
const SEND = `job="pretrain", rank=rank, ...).send("train_metrics", { "step": step, "loss": loss })`;

/** A number with four digits; what is not finite in the colour of a fault, and a dash for one that was not sent.
 * @type {(value: import("./dom.js").Value, unit?: string) => HTMLElement} */
function number(value, unit = "") {
  const className = Number.isFinite(parsed(value) ?? 0) ? "" : "bad";
  return element("span", { className, textContent: text(value) ? `${text(value)}${unit}` : "–" });
}

const card = (/** @type {Node[]} */ ...parts) => element("section", { className: "card", hidden: true }, ...parts);

export class Jobs {
  constructor() {
    document.title = t("jobs.title");
    this.token = sessionStorage.getItem("token") ?? "";
    this.chosen = "";
    this.rounds = 0;
    const field = element("input", { id: "token", type: "password", autocomplete: "off", aria: { label: t("jobs.token") } });
    const enter = button(t("cause.show"), () => this.enter(field), { id: "enter" });
    this.entry = element("div", { id: "entry", hidden: true }, `${t("jobs.token")} `, field, enter);
    this.status = element("p", { id: "status", className: "quiet", aria: { role: "status" } });
    this.jobs = element("div", { id: "jobs" });
    this.ranks = element("div", { id: "ranks" });
    this.ranksTitle = element("h2");
    this.rest = element("p", { className: "quiet", id: "hidden" });
    this.loss = new Chart(t("jobs.curve"), 150, {});
    this.events = element("div", { id: "events" });
    this.detail = card(this.ranksTitle, this.loss.element, this.ranks, this.rest);
    this.findings = card(element("h2", { textContent: t("jobs.events") }), this.events);
    const list = element("section", { className: "card" }, this.jobs);
    this.element = element("div", { className: "jobs" }, element("h1", { textContent: t("jobs") }), this.status, this.entry, list, this.detail, this.findings);
    const [draw, fail] = [(/** @type {any} */ answer) => this.show(answer), (/** @type {Error} */ problem) => this.fail(problem)];
    this.source = new Source(() => this.ask(), draw, fail);
    this.source.want("v1/board");
    setInterval(() => document.hidden || this.source.flight || this.source.renew(), EVERY);
  }

  watched = () => [];
  changed() {}
  leave() {}
  update() {}

  /** @param {HTMLInputElement} field */
  enter(field) {
    this.token = field.value;
    sessionStorage.setItem("token", this.token);
    field.value = "";
    this.source.renew();
  }

  /** @param {string} path */
  get = (path) => json(path, AbortSignal.timeout(LONGEST), this.token ? { Authorization: `Bearer ${this.token}` } : {});

  /** Jobs, the worst ranks of the chosen one, events. */
  async ask() {
    const board = await this.get("v1/board");
    const job = board.jobs.find((/** @type {any} */ one) => one.id === this.chosen) ?? board.jobs[0];
    const detail = job && (await this.get(`v1/board/${encodeURIComponent(job.id)}`));
    return { board, job, detail, messages: (await this.get("v1/events")).messages };
  }

  /** @param {Error & { status?: number }} problem */
  fail({ status, message }) {
    if (status === 401) this.entry.hidden = false;
    this.status.textContent = t("jobs.stale", { problem: status === 401 ? t("jobs.locked") : message });
    this.status.classList.add("bad");
    this.count();
  }

  count = () => (document.body.dataset.rounds = String((this.rounds += 1)));

  /** @param {{ board: any, job: any, detail: any, messages: any[] }} answer */
  show({ board: { jobs, more, ranks }, job, detail, messages }) {
    const known = t("jobs.count", { jobs: jobs.length + more, processes: ranks });
    this.status.textContent = known + (more ? ` ${t("jobs.more", { more })}` : "");
    this.status.classList.remove("bad");
    this.drawJobs(jobs);
    this.detail.hidden = !job;
    if (job) this.drawRanks(job, detail);
    this.findings.hidden = !messages.length;
    this.events.replaceChildren(table("time job rank kind text".split(" ").map((name) => t(`event.${name}`)), messages.map((event) => this.event(event))));
    this.entry.hidden = true;
    document.body.dataset.ready = "yes";
    this.count();
  }

  /** @param {any[]} jobs */
  drawJobs(jobs) {
    const made = jobs.map((job) => [
      button(job.job, () => this.choose(job.id), { className: "link", aria: { pressed: job.id === this.chosen } }), job.launch,
      this.states(job), text(job.step, 12) || "–", number(job.loss), number(job.grad_norm), number(job.step_seconds, " s"),
      t("jobs.ago", { seconds: text(job.age) }), text(job.events),
    ]);
    const hint = element("pre", { textContent: `Heartbeats("${location.origin}", ${SEND}` });
    const none = element("div", { className: "quiet" }, t("jobs.none"), hint);
    this.jobs.replaceChildren(made.length ? table("job launch ranks step loss norm seconds age events".split(" ").map((name) => t(`job.${name}`)), made) : none);
  }

  /** @param {string} id */
  choose(id) {
    this.chosen = this.chosen === id ? "" : id;
    this.source.renew();
  }

  /** @param {any} job */
  states(job) {
    const parts = Object.entries(job.states).map(([name, count]) => {
      const silent = name === "silent" ? ` (${job.silent})` : "";
      return element("span", { className: name, textContent: `${count} ${t(`state.${name}`)}${silent} ` });
    });
    return element("span", {}, ...parts, t("jobs.of", { world: job.world }));
  }

  /** @type {(job: any, detail: any) => void} */
  drawRanks(job, detail) {
    this.ranksTitle.textContent = t("jobs.worst", { job: job.job });
    const points = /** @type {[number, any][]} */ (job.curve);
    const losses = points.map(([, loss]) => parsed(loss) ?? NaN);
    const nan = losses.map((value, n) => Number(points[n][1] !== null && Number.isNaN(value)));
    this.loss.show(points.map(([step]) => [step, step]), [line(t("job.loss"), losses, { colour: colour("accent"), nan })], null);
    const made = detail.worst.map((/** @type {any} */ rank) => [
      rank.rank, element("span", { className: rank.state, textContent: t(`state.${rank.state}`) }), rank.phase ?? "",
      text(rank.step, 12) || "–", number(rank.loss), number(rank.grad_norm), number(rank.step_seconds, " s"),
      t("jobs.ago", { seconds: text(rank.age) }), rank.promise === "Infinity" ? t("jobs.unpromised") : number(rank.promise, " s"),
    ]);
    this.ranks.replaceChildren(table("rank state phase step loss norm seconds age promise".split(" ").map((name) => t(`job.${name}`)), made));
    const rest = detail.processes - detail.worst.length;
    this.rest.textContent = rest ? t("jobs.rest", { count: rest }) : "";
  }

  /** @param {any} event */
  event(event) {
    const values = Object.entries(event.values).map(([name, value]) => `${eventText(name)}: ${value}`).join("\n");
    const moment = new Date(event.time * 1000);
    const time = Number.isNaN(moment.valueOf()) ? "" : moment.toLocaleString(spoken());
    return [time, event.job, event.rank, eventText(event.kind), element("span", { className: "lines", textContent: values })];
  }
}

/** The text of a kind of event or of its field; a program's own name stands for itself. @param {string} name */
const eventText = (name) => (t(`event.${name}`) === `event.${name}` ? name : t(`event.${name}`));
