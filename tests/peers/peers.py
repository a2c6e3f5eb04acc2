"""Signs and verifies with the libraries of the providers.

Reads a JSON list of tasks: {"library", "task": "sign" or "verify", "secret", "id", "at", "body",
"headers"}. Writes a list of answers: the headers, or whether they verify.
"""

import datetime
import json
import sys

import slack_sdk.signature
import standardwebhooks
import stripe
import svix.webhooks


class Fixed(slack_sdk.signature.Clock):
    def __init__(self, at):
        self.at = at

    def now(self):
        return float(self.at)


def standard(webhook, errors, prefix):
    def sign(task):
        at = datetime.datetime.fromtimestamp(task["at"], datetime.timezone.utc)
        signature = webhook(task["secret"]).sign(task["id"], at, task["body"])
        return {prefix + "id": task["id"], prefix + "timestamp": str(task["at"]), prefix + "signature": signature}

    def verify(task):
        try:
            webhook(task["secret"]).verify(task["body"], task["headers"])
            return True
        except errors:
            return False

    return {"sign": sign, "verify": verify}


def stripe_sign(task):
    payload = f"{task['at']}.{task['body']}"
    signature = stripe.WebhookSignature._compute_signature(payload, task["secret"])
    return {"stripe-signature": f"t={task['at']},v1={signature}"}


def stripe_verify(task):
    header = task["headers"]["stripe-signature"]
    try:
        return stripe.WebhookSignature.verify_header(task["body"], header, task["secret"], tolerance=300)
    except stripe.SignatureVerificationError:
        return False


def slack(task):
    return slack_sdk.signature.SignatureVerifier(task["secret"], Fixed(task["at"]))


def slack_sign(task):
    at = str(task["at"])
    signature = slack(task).generate_signature(timestamp=at, body=task["body"])
    return {"x-slack-request-timestamp": at, "x-slack-signature": signature}


def slack_verify(task):
    headers = task["headers"]
    return slack(task).is_valid(
        task["body"], headers["x-slack-request-timestamp"], headers["x-slack-signature"]
    )


LIBRARIES = {
    "svix": standard(svix.webhooks.Webhook, svix.webhooks.WebhookVerificationError, "svix-"),
    "standardwebhooks": standard(
        standardwebhooks.Webhook, standardwebhooks.WebhookVerificationError, "webhook-"
    ),
    "stripe": {"sign": stripe_sign, "verify": stripe_verify},
    "slack_sdk": {"sign": slack_sign, "verify": slack_verify},
}

json.dump([LIBRARIES[task["library"]][task["task"]](task) for task in json.load(sys.stdin)], sys.stdout)
