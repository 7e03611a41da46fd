// The history of one tree, unpacked: which files there are after any change, and which compaction made it.

function running(list, start = 0) {
  let at = start;
  return list.map(difference => (at += difference));
}

class Timeline {
  constructor(packed) {
    const f = packed.files;
    this.keyspace = packed.keyspace;
    this.positions = packed.positions;
    this.keys = packed.keys;
    this.at = running(packed.at).map(us => us / 1e6);
    this.by = packed.by.map(n => n - 1);
    this.count = f.id.length;
    [this.id, this.run, this.low, this.born] = [f.id, f.run, f.low, f.born].map(list => running(list));
    this.high = f.high.map((width, i) => this.low[i] + width);
    [this.level, this.bytes, this.entries, this.tombstones] = [f.level, f.bytes, f.entries, f.tombstones];
    this.died = f.lived.map((n, i) => (n ? this.born[i] + n : Infinity));
    this.compactions = decisionsOf(packed.compactions);
    [this.joined, this.leftOut] = [packed.joined, packed.left_out];
    this.last = this.at.length - 1;
    this.#measure();
    this.#link();
  }

  // Bytes and runs after each change, and the most runs that each level ever has.
  #measure() {
    const changes = Array.from({ length: this.at.length }, () => []);
    for (let i = 0; i < this.count; i += 1) {
      changes[this.born[i]].push(i);
      if (this.died[i] !== Infinity) changes[this.died[i]].push(~i);
    }
    const levels = [];
    let [bytes, runs] = [0, 0];
    this.rows = [];
    this.bytesAt = [];
    this.runsAt = [];
    for (const change of changes) {
      // What goes makes room before what comes.
      change.sort((a, b) => a - b);
      for (const signed of change) {
        const i = signed < 0 ? ~signed : signed;
        const level = (levels[this.level[i]] ||= new Map());
        const files = (level.get(this.run[i]) || 0) + (signed < 0 ? -1 : 1);
        bytes += signed < 0 ? -this.bytes[i] : this.bytes[i];
        if (files === 0) { level.delete(this.run[i]); runs -= 1; } else { if (files === 1 && signed >= 0) runs += 1; level.set(this.run[i], files); }
      }
      levels.forEach((level, n) => { this.rows[n] = Math.max(this.rows[n] || 0, level.size); });
      this.bytesAt.push(bytes);
      this.runsAt.push(runs);
    }
    this.rows = Array.from(this.rows, n => n || 0);
  }

  // The change that each compaction ended with; of one that changed nothing, the one before it.
  #link() {
    this.changeOf = new Array(this.compactions.length).fill(-1);
    this.by.forEach((by, change) => { if (by >= 0) this.changeOf[by] = change; });
    this.compactions.forEach((compaction, i) => { if (this.changeOf[i] < 0) this.changeOf[i] = this.before(compaction.at); });
  }

  // The last change at or before a time; the first one if there is none.
  before(seconds) {
    let [low, high] = [0, this.at.length];
    while (low < high) { const middle = (low + high) >> 1; if (this.at[middle] <= seconds) low = middle + 1; else high = middle; }
    return Math.max(low - 1, 0);
  }

  files(change) {
    const alive = [];
    for (let i = 0; i < this.count; i += 1) if (this.born[i] <= change && change < this.died[i]) alive.push(i);
    return alive;
  }

  // The levels after a change: of each its runs, newest first, of each its files.
  levels(change) {
    const levels = this.rows.map(() => new Map());
    for (const i of this.files(change)) {
      const runs = levels[this.level[i]];
      if (!runs.has(this.run[i])) runs.set(this.run[i], []);
      runs.get(this.run[i]).push(i);
    }
    return levels.map(runs => [...runs].sort((a, b) => b[0] - a[0]).map(([, files]) => files));
  }

  // Some key near a place of the axis.
  keyAt(place) {
    let [low, high] = [0, this.keys.length];
    while (low < high) { const middle = (low + high) >> 1; if (this.keys[middle][0] <= place) low = middle + 1; else high = middle; }
    const found = this.keys[Math.max(low - 1, 0)];
    if (!found) return '';
    return `${found[0] === place ? '' : 'after '}${shorten(keyText(found[1]), 26)}`;
  }
}

function decisionsOf(packed) {
  const at = running(packed.at);
  let [candidate, job] = [0, 0];
  return packed.at.map((_, i) => {
    job += packed.job[i];
    const candidates = [candidate, (candidate += packed.kept[i])];
    return {
      i, at: at[i] / 1e6, took: packed.took_us[i] / 1e6, kind: packed.texts[packed.kind[i]], from: packed.from[i], to: packed.to[i],
      read: packed.read[i], written: packed.written[i], job: packed.job[i] || packed.reason[i] ? job : null,
      reason: packed.texts[packed.reason[i]], trigger: packed.texts[packed.trigger[i]], ending: packed.texts[packed.ending[i]],
      value: packed.value[i], threshold: packed.threshold[i], plannedRead: packed.planned_read[i], plannedWritten: packed.planned_written[i],
      predicted: packed.predicted_us[i], dropped: packed.dropped[i], total: packed.total[i],
      get candidates() {
        let file = 0;
        const list = [];
        for (let c = candidates[0]; c < candidates[1]; c += 1) {
          file += packed.candidate_file[c];
          const flags = packed.candidate_flags[c];
          list.push({ file, runs: packed.candidate_runs[c], scores: packed.candidate_scores[c], chosen: (flags & 1) > 0, blocked: (flags & 2) > 0 });
        }
        return list;
      },
    };
  });
}

const timelines = new Map();
function timelineOf(packed) {
  if (!timelines.has(packed)) timelines.set(packed, new Timeline(packed));
  return timelines.get(packed);
}
