// Usage: node make.mjs INDEX DIR
//
// Writes the picked examples from INDEX, the index.json of the npm package
// @octokit/webhooks-examples, into DIR and drops every other .json file there.
import { readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";

// The picks: for each event, positions in its list of examples, from 0.
const picks = {
  check_run: [4, 2],
  check_suite: [4, 1],
  commit_comment: [1],
  create: [1],
  delete: [1],
  deployment: [2],
  deployment_status: [2],
  discussion: [3, 1],
  discussion_comment: [1],
  fork: [1],
  installation: [1],
  issue_comment: [2, 7, 5],
  issues: [16, 7, 9, 13, 11, 20, 4],
  label: [1],
  member: [1],
  milestone: [3, 1],
  organization: [1],
  package: [2],
  ping: [1],
  projects_v2_item: [4],
  pull_request: [12, 22, 3],
  pull_request_review: [0],
  pull_request_review_comment: [0],
  push: [0, 1, 4],
  release: [2, 11],
  repository: [1],
  security_advisory: [1],
  star: [1, 2],
  status: [2],
  watch: [1],
  workflow_dispatch: [1],
  workflow_job: [5, 3, 2],
  workflow_run: [3, 1],
};

const [index, dir] = process.argv.slice(2);
const events = JSON.parse(readFileSync(index, "utf8"));

const files = new Map();
for (const [name, positions] of Object.entries(picks)) {
  const { examples } = events.find((event) => event.name === name);
  for (const n of positions) {
    const payload = examples[n];
    const file = [name, payload.action, n, "json"].filter((part) => part !== undefined).join(".");
    files.set(file, JSON.stringify(payload, null, 2) + "\n");
  }
}

for (const file of readdirSync(dir)) {
  if (file.endsWith(".json") && !files.has(file)) rmSync(join(dir, file));
}
for (const [file, text] of files) writeFileSync(join(dir, file), text);
