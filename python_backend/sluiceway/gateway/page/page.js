// One answer over one WebSocket (docs/client.md). A frame is acknowledged when it is shown, so the slider is a reader's
// pace: what is not shown is not acknowledged, and the backend stops making more.

const LEVELS = ["produced", "sent", "forwarded", "delivered", "consumed"];
const AS_THEY_COME = 41;
const LEVELS_EVERY_MS = 500;
const RESUME_TRIES = 5;
const TOO_LARGE = 1009; // RFC 6455, 7.4.1

const element = (id) => document.getElementById(id);
const [ask, prompt, tokens, send, stop, speed, speedText, state, levels, counts, answer, end] = [
  "ask", "prompt", "tokens", "send", "stop", "speed", "speed-text", "state", "levels", "counts", "answer", "end",
].map(element);

let stream = null;

class Stream {
  constructor(opening) {
    this.waiting = [];
    this.shownFrame = -1;
    this.shownTokens = 0;
    this.streamId = "";
    this.isOver = false;
    this.tries = 0;
    this.connect(opening);
    this.polling = setInterval(() => this.say({ type: "levels" }), LEVELS_EVERY_MS);
    this.showNext();
  }

  connect(opening) {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    this.socket = new WebSocket(`${scheme}://${location.host}/v1/stream`);
    this.socket.onopen = () => this.say(opening);
    this.socket.onmessage = (event) => this.take(JSON.parse(event.data));
    this.socket.onclose = (event) => this.closed(event.code);
  }

  say(message) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  take(message) {
    if (message.type === "frame") {
      this.tries = 0;
      this.streamId ||= message.stream_id ?? "";
      this.waiting.push(message);
    } else if (message.type === "levels") {
      showLevels(message.levels, this);
    } else if (message.type === "error") {
      this.finish(`Refused: ${message.error.message}`);
    }
  }

  // A broken connection is made again; the answer goes on after the last frame that came.
  closed(code) {
    const last = this.waiting.at(-1);
    if (this.isOver || last?.finish_reason) return;
    if (code === TOO_LARGE) {
      this.finish("Refused: your message is too large.");
      return;
    }
    if (!this.streamId || this.tries++ >= RESUME_TRIES) {
      this.finish("The connection was lost.");
      return;
    }
    const frame = (last?.frame ?? this.shownFrame) + 1;
    setTimeout(() => this.connect({ type: "resume_stream", stream_id: this.streamId, frame, acks: true }), 200 * this.tries);
  }

  showNext() {
    if (this.isOver) return;
    const pace = Number(speed.value);
    if (pace > 0 && this.waiting.length) {
      const frames = pace === AS_THEY_COME ? this.waiting.splice(0) : this.waiting.splice(0, 1);
      for (const frame of frames) this.show(frame);
      if (!this.isOver) this.say({ type: "ack", frame: this.shownFrame });
    }
    this.timer = setTimeout(() => this.showNext(), pace === 0 || pace === AS_THEY_COME ? 30 : 1000 / pace);
  }

  show(frame) {
    const followed = answer.scrollTop + answer.clientHeight >= answer.scrollHeight - 20;
    answer.append(frame.text);
    if (followed) answer.scrollTop = answer.scrollHeight;
    this.shownFrame = frame.frame;
    if (frame.finish_reason) {
      this.finish(`Finished: ${frame.finish_reason}, ${frame.usage.completion_tokens} tokens.`);
    }
  }

  // The server's own close can be long in coming (Envoy's delayed_close_timeout); nothing waits for it.
  finish(text) {
    this.isOver = true;
    clearInterval(this.polling);
    clearTimeout(this.timer);
    this.socket.close();
    end.textContent = text;
    showState("idle", false);
    swap(stop, send);
  }
}

// One of the two buttons works at a time; who was on the one is put on the other.
function swap(from, to) {
  to.disabled = false;
  if (document.activeElement === from) to.focus();
  from.disabled = true;
}

function showState(text, isPaused) {
  state.textContent = text;
  state.classList.toggle("paused", isPaused);
}

function showLevels(seen, shownBy) {
  if (!seen.state || shownBy.isOver) return;
  showState(seen.state, seen.is_paused);
  const most = Math.max(1, seen.produced.tokens);
  for (const level of LEVELS) {
    const count = seen[level].tokens;
    const row = element(`level-${level}`);
    row.querySelector(".count").textContent = count;
    row.querySelector(".bar").style.width = `${(100 * count) / most}%`;
  }
  counts.textContent =
    `Paused ${seen.pauses} times, ${seen.paused_s.toFixed(1)} s in all; its KV cache was given away ${seen.kv_releases} times. ` +
    `${shownBy.waiting.length} frames wait in this page.`;
}

function showSpeed() {
  const pace = Number(speed.value);
  speedText.textContent = pace === 0 ? "not reading" : pace === AS_THEY_COME ? "as they come" : String(pace);
}

for (const level of LEVELS) {
  const row = document.createElement("tr");
  row.id = `level-${level}`;
  row.innerHTML = `<th scope="row">${level}</th><td class="count">0</td><td><div class="bar"></div></td>`;
  levels.append(row);
}
speed.addEventListener("input", showSpeed);
showSpeed();

ask.addEventListener("submit", (event) => {
  event.preventDefault();
  answer.textContent = end.textContent = counts.textContent = "";
  swap(send, stop);
  showState("asking", false);
  stream = new Stream({
    type: "generate",
    messages: [{ role: "user", content: prompt.value }],
    max_tokens: Number(tokens.value),
    acks: true,
    resumable: true,
  });
});
stop.addEventListener("click", () => stream.say({ type: "cancel" }));
// Else the stream would be kept for a while, for a reader that may come back.
addEventListener("pagehide", () => stream?.say({ type: "cancel" }));
