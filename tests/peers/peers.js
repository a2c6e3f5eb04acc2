// Signs and verifies with the libraries of the providers; the tasks are those of `peers.py`.

import { readFileSync } from "node:fs";

import * as octokit from "@octokit/webhooks-methods";
import * as standardwebhooks from "standardwebhooks";
import Stripe from "stripe";
import * as svix from "svix";

const stripe = new Stripe("sk_test_unused");

function succeeds(attempt) {
  try {
    attempt();
    return true;
  } catch {
    return false;
  }
}

function standard(Webhook, prefix) {
  return {
    sign: ({ secret, id, at, body }) => ({
      [`${prefix}id`]: id,
      [`${prefix}timestamp`]: String(at),
      [`${prefix}signature`]: new Webhook(secret).sign(id, new Date(at * 1000), body),
    }),
    verify: ({ secret, body, headers }) => succeeds(() => new Webhook(secret).verify(body, headers)),
  };
}

const libraries = {
  octokit: {
    sign: async ({ secret, id, body }) => ({
      "x-hub-signature-256": await octokit.sign(secret, body),
      "x-github-delivery": id,
    }),
    verify: ({ secret, body, headers }) => octokit.verify(secret, body, headers["x-hub-signature-256"]),
  },
  standardwebhooks: standard(standardwebhooks.Webhook, "webhook-"),
  stripe: {
    sign: ({ secret, at, body }) => ({
      "stripe-signature": stripe.webhooks.generateTestHeaderString({ payload: body, secret, timestamp: at }),
    }),
    verify: ({ secret, body, headers }) =>
      succeeds(() => stripe.webhooks.constructEvent(body, headers["stripe-signature"], secret)),
  },
  svix: standard(svix.Webhook, "svix-"),
};

const tasks = JSON.parse(readFileSync(0, "utf8"));
const answers = await Promise.all(tasks.map((task) => libraries[task.library][task.task](task)));
process.stdout.write(JSON.stringify(answers));
