// Live page: asks the server again and again. Texts from runs are put into the page as text alone.
"use strict";

const EVERY = 2000;
const state = { token: sessionStorage.getItem("token") ?? "", chosen: null, rounds: 0 };
const at = (id) => document.getElementById(id);

function number(value, digits = 4) {
  if (value === null || value === undefined || value === "NaN") return value === "NaN" ? "NaN" : "";
  return typeof value === "number" ? String(Number(value.toPrecision(digits))) : String(value);
}

const seconds = (value) => (number(value) === "" ? "" : `${number(value)} s`);
const broken = (value) => (typeof value === "string" ? "bad" : "");

function cell(text, name = "") {
  const element = document.createElement("td");
  element.textContent = text;
  if (name) element.className = name;
  return element;
}

function row(cells) {
  const element = document.createElement("tr");
  element.append(...cells);
  return element;
}

function curve(points) {
  const space = "http://www.w3.org/2000/svg";
  const drawn = document.createElementNS(space, "svg");
  const finite = points.filter((point) => point.every((value) => typeof value === "number"));
  drawn.setAttribute("viewBox", "0 0 140 28");
  if (finite.length > 1) {
    const [steps, losses] = [0, 1].map((column) => finite.map((point) => point[column]));
    const scale = (values, length) => {
      const low = Math.min(...values);
      const width = Math.max(...values) - low || 1;
      return (value) => (((value - low) / width) * length).toFixed(1);
    };
    const [x, y] = [scale(steps, 138), scale(losses, 26)];
    const line = document.createElementNS(space, "polyline");
    line.setAttribute("points", finite.map(([step, loss]) => `${x(step)},${(27 - y(loss)).toFixed(1)}`).join(" "));
    drawn.append(line);
  }
  const element = document.createElement("td");
  element.append(drawn);
  return element;
}

function ranks(job) {
  const element = document.createElement("td");
  for (const [name, count] of Object.entries(job.states)) {
    const part = document.createElement("span");
    part.className = name;
    part.textContent = `${count} ${name}${name === "silent" ? ` (${job.silent})` : ""} `;
    element.append(part);
  }
  element.append(`of ${job.world}`);
  return element;
}

function jobRow(job) {
  const element = row([
    cell(job.job, "long"), cell(job.launch, "long"), ranks(job), cell(number(job.step, 12)), cell(number(job.loss), broken(job.loss)),
    curve(job.curve), cell(number(job.grad_norm), broken(job.grad_norm)), cell(seconds(job.step_seconds)),
    cell(`${number(job.age)} s ago`), cell(number(job.events)),
  ]);
  element.dataset.id = job.id;
  element.classList.toggle("chosen", job.id === state.chosen);
  element.addEventListener("click", () => {
    state.chosen = state.chosen === job.id ? null : job.id;
    update();
  });
  return element;
}

function rankRow(rank) {
  return row([
    cell(rank.rank), cell(rank.state, rank.state), cell(rank.phase, "long"), cell(number(rank.step, 12)),
    cell(number(rank.loss), broken(rank.loss)), cell(number(rank.grad_norm), broken(rank.grad_norm)),
    cell(seconds(rank.step_seconds)), cell(`${number(rank.age)} s ago`),
    cell(rank.promise === "Infinity" ? "no promise" : seconds(rank.promise)),
  ]);
}

function eventRow(event) {
  const text = Object.entries(event.values).map(([name, value]) => `${name}: ${value}`).join("\n");
  const moment = new Date(event.time * 1000);
  return row([
    cell(Number.isNaN(moment.valueOf()) ? "" : moment.toLocaleString()), cell(event.job, "long"), cell(event.rank),
    cell(event.kind), cell(text, "text"),
  ]);
}

async function get(path) {
  const headers = state.token ? { Authorization: `Bearer ${state.token}` } : {};
  const answer = await fetch(path, { headers, signal: AbortSignal.timeout(10000) });
  if (answer.status === 401) at("entry").hidden = false;
  if (!answer.ok) throw new Error(answer.status === 401 ? "a token is needed" : `status ${answer.status}`);
  at("entry").hidden = true;
  return answer.json();
}

async function show() {
  const found = await get("v1/board");
  at("jobs").hidden = !found.jobs.length;
  at("none").hidden = Boolean(found.jobs.length);
  at("jobs").tBodies[0].replaceChildren(...found.jobs.map(jobRow));
  const more = found.more ? `, ${found.more} more jobs not shown` : "";
  const plural = (count, noun, several) => `${count} ${count === 1 ? noun : several}`;
  const jobs = plural(found.jobs.length, "job", "jobs");
  at("status").textContent = `${jobs}, ${plural(found.ranks, "process", "processes")}${more}`;
  const chosen = found.jobs.find((job) => job.id === state.chosen) ?? found.jobs[0];
  at("chosen").hidden = !chosen;
  if (chosen) {
    const detail = await get(`v1/board/${encodeURIComponent(chosen.id)}`);
    at("chosen").querySelector("h2").textContent = `Ranks of ${detail.job} that need attention first`;
    at("ranks").tBodies[0].replaceChildren(...detail.worst.map(rankRow));
    const hidden = detail.processes - detail.worst.length;
    at("hidden").textContent = hidden ? `${hidden} further processes` : "";
  }
  const events = (await get("v1/events")).messages;
  at("findings").hidden = !events.length;
  at("findings").querySelector("tbody").replaceChildren(...events.map(eventRow));
}

async function update() {
  try {
    await show();
    at("status").className = "";
    document.body.dataset.ready = "yes";
  } catch (error) {
    at("status").textContent = `not up to date: ${error.message}`;
    at("status").className = "bad";
  }
  state.rounds += 1;
  document.body.dataset.rounds = String(state.rounds);
}

at("enter").addEventListener("click", () => {
  state.token = at("token").value;
  sessionStorage.setItem("token", state.token);
  at("token").value = "";
  update();
});

async function follow() {
  if (!document.hidden) await update();
  setTimeout(follow, EVERY);
}

follow();
