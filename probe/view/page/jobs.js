// Jobs of a server of heartbeats: each with its ranks, the worst of them, findings. It is asked again and again.
import { Chart, line } from "./chart.js";
import { table } from "./details.js";
import { json } from "./api.js";
import { button, element, parsed, text } from "./dom.js";
import { colour } from "./palette.js";
import { spoken, t } from "./words.js";

const EVERY = 2000; // milliseconds
const LONGEST = 10_000;

/**
 * A number with four digits; what is not finite in the colour of a fault, and a dash for one that was not sent.
 * @type {(value: number | string | null | undefined, unit?: string) => HTMLElement}
 */
const number = (value, unit = "") => element("span", { className: Number.isFinite(parsed(value) ?? 0) ? "" : "bad", textContent: text(value) ? `${text(value)}${unit}` : "–" });

export class Jobs {
  constructor() {
    document.title = t("jobs.title");
    this.token = sessionStorage.getItem("token") ?? "";
    this.chosen = "";
    this.rounds = 0;
    const field = element("input", { id: "token", type: "password", autocomplete: "off", aria: { label: t("jobs.token") } });
    this.entry = element("div", { id: "entry", hidden: true }, element("span", { textContent: `${t("jobs.token")} ` }), field, button(t("cause.show"), () => this.enter(field), { id: "enter" }));
    this.status = element("p", { id: "status", className: "quiet", aria: { role: "status" } });
    this.jobs = element("div", { id: "jobs" });
    this.ranks = element("div", { id: "ranks" });
    this.ranksTitle = element("h2");
    this.rest = element("p", { className: "quiet", id: "hidden" });
    this.loss = new Chart(t("jobs.curve"), 150, {});
    this.events = element("div", { id: "events" });
    this.detail = element("section", { className: "card", hidden: true }, this.ranksTitle, this.loss.element, this.ranks, this.rest);
    this.findings = element("section", { className: "card", hidden: true }, element("h2", { textContent: t("jobs.events") }), this.events);
    this.element = element("div", { className: "jobs" }, element("h1", { textContent: t("jobs") }), this.status, this.entry, element("section", { className: "card" }, this.jobs), this.detail, this.findings);
    this.follow();
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
    this.renew();
  }

  async follow() {
    if (!document.hidden) await this.renew();
    setTimeout(() => this.follow(), EVERY);
  }

  async renew() {
    try {
      await this.show();
      this.entry.hidden = true;
      document.body.dataset.ready = "yes";
      this.status.classList.remove("bad");
    } catch (error) {
      const { status, message } = /** @type {Error & { status?: number }} */ (error);
      if (status === 401) this.entry.hidden = false;
      this.status.textContent = t("jobs.stale", { problem: status === 401 ? t("jobs.locked") : message });
      this.status.classList.add("bad");
    }
    document.body.dataset.rounds = String((this.rounds += 1));
  }

  /** @param {string} path */
  get = (path) => json(path, AbortSignal.timeout(LONGEST), this.token ? { Authorization: `Bearer ${this.token}` } : {});

  async show() {
    const { jobs, more, ranks } = await this.get("v1/board");
    this.status.textContent = t("jobs.count", { jobs: jobs.length + more, processes: ranks }) + (more ? ` ${t("jobs.more", { more })}` : "");
    this.drawJobs(jobs);
    const chosen = jobs.find((/** @type {any} */ job) => job.id === this.chosen) ?? jobs[0];
    this.detail.hidden = !chosen;
    if (chosen) this.drawRanks(chosen, await this.get(`v1/board/${encodeURIComponent(chosen.id)}`));
    const { messages } = await this.get("v1/events");
    this.findings.hidden = !messages.length;
    this.events.replaceChildren(table(["time", "job", "rank", "kind", "text"].map((name) => t(`event.${name}`)), messages.map((/** @type {any} */ event) => this.event(event))));
  }

  /** @param {any[]} jobs */
  drawJobs(jobs) {
    const heads = ["job", "launch", "ranks", "step", "loss", "norm", "seconds", "age", "events"].map((name) => t(`job.${name}`));
    const made = table(heads, jobs.map((job) => [button(job.job, () => this.choose(job.id), { className: "link", aria: { pressed: job.id === this.chosen } }), job.launch, this.states(job), text(job.step, 12) || "–",
      number(job.loss), number(job.grad_norm), number(job.step_seconds, " s"), t("jobs.ago", { seconds: text(job.age) }), text(job.events)]));
    this.jobs.replaceChildren(jobs.length ? made : element("div", { className: "quiet" }, t("jobs.none"), element("pre", { textContent: `Heartbeats("${location.origin}", job="pretrain", rank=rank, ...).send("train_metrics", { "step": step, "loss": loss })` })));
  }

  /** @param {string} id */
  choose(id) {
    this.chosen = this.chosen === id ? "" : id;
    this.renew();
  }

  /** @param {any} job */
  states(job) {
    const parts = Object.entries(job.states).map(([name, count]) => element("span", { className: name, textContent: `${count} ${t(`state.${name}`)}${name === "silent" ? ` (${job.silent})` : ""} ` }));
    return element("span", {}, ...parts, t("jobs.of", { world: job.world }));
  }

  /** @type {(job: any, detail: any) => void} */
  drawRanks(job, detail) {
    this.ranksTitle.textContent = t("jobs.worst", { job: job.job });
    const losses = job.curve.map((/** @type {any[]} */ [, loss]) => parsed(loss) ?? NaN);
    const nan = losses.map((/** @type {number} */ value, /** @type {number} */ n) => Number(job.curve[n][1] !== null && Number.isNaN(value)));
    this.loss.show(job.curve.map((/** @type {number[]} */ [step]) => [step, step]), [line(t("job.loss"), losses, { colour: colour("accent"), nan })], null);
    const heads = ["rank", "state", "phase", "step", "loss", "norm", "seconds", "age", "promise"].map((name) => t(`job.${name}`));
    this.ranks.replaceChildren(table(heads, detail.worst.map((/** @type {any} */ rank) => [rank.rank, element("span", { className: rank.state, textContent: t(`state.${rank.state}`) }), rank.phase ?? "", text(rank.step, 12) || "–", number(rank.loss), number(rank.grad_norm),
      number(rank.step_seconds, " s"), t("jobs.ago", { seconds: text(rank.age) }), rank.promise === "Infinity" ? t("jobs.unpromised") : number(rank.promise, " s")])));
    const rest = detail.processes - detail.worst.length;
    this.rest.textContent = rest ? t("jobs.rest", { count: rest }) : "";
  }

  /** @param {any} event */
  event(event) {
    const values = Object.entries(event.values).map(([name, value]) => `${eventText(name)}: ${value}`).join("\n");
    const moment = new Date(event.time * 1000);
    return [Number.isNaN(moment.valueOf()) ? "" : moment.toLocaleString(spoken()), event.job, event.rank, eventText(event.kind), element("span", { className: "lines", textContent: values })];
  }
}

/**
 * The text of a kind of event or of one of its fields; a program's own name stands for itself.
 * @param {string} name
 */
function eventText(name) {
  const text = t(`event.${name}`);
  return text === `event.${name}` ? name : text;
}
