"use strict";
// All pages work without this script. It refreshes regions, asks for confirmation, prevents a form from being sent twice, copies texts,
// shows previews while a visitor types, and adds two keyboard shortcuts.

// confirmed shows a question in a dialog with two buttons. It resolves to true for the button with the text action.
function confirmed(question, action, danger) {
  return new Promise((resolve) => {
    const dialog = document.createElement("dialog");
    const text = document.createElement("p");
    text.textContent = question;
    const buttons = document.createElement("form");
    buttons.method = "dialog";
    buttons.className = "buttons";
    const no = document.createElement("button");
    no.value = "";
    no.textContent = document.body.dataset.back;
    const yes = document.createElement("button");
    yes.value = "yes";
    yes.className = danger ? "primary danger" : "primary";
    yes.textContent = action;
    buttons.append(no, yes);
    dialog.append(text, buttons);
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
    no.focus();
  });
}

// A form with the attribute data-confirm is sent only after the visitor has confirmed the question in this attribute.
document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.dataset.confirm || form.dataset.asked) {
    return;
  }
  event.preventDefault();
  const button = event.submitter;
  if (await confirmed(form.dataset.confirm, button ? button.textContent : "OK", button?.classList.contains("danger"))) {
    form.dataset.asked = "yes";
    form.requestSubmit(button);
  }
});

// A form is sent once, even if its button is pressed twice.
document.addEventListener("submit", (event) => {
  if (event.defaultPrevented) {
    return;
  }
  setTimeout(() => {
    for (const button of event.target.querySelectorAll("button")) {
      button.disabled = event.target.method === "post";
    }
  });
});

window.addEventListener("pageshow", (event) => {
  if (event.persisted) { // back to a page that has sent a form: enable its buttons
    document.querySelectorAll("button:disabled").forEach((button) => { button.disabled = false; });
  }
});

// copy also works over plain HTTP, where browsers have no navigator.clipboard.
async function copy(text) {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text);
  }
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

function showCopyButtons(root) {
  for (const button of root.querySelectorAll("button[data-copy]")) {
    button.hidden = false;
  }
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (button) {
    await copy(button.dataset.copy);
    const text = button.textContent;
    button.textContent = "✓";
    setTimeout(() => { button.textContent = text; }, 1500);
  }
});

// refresh replaces a region by its current content, unless the visitor uses the region, has a dialog open or does not see the page.
// The attribute data-refresh of a region is the number of seconds between refreshes.
async function refresh(region, index) {
  const typed = [...region.querySelectorAll("input, textarea")].some((field) => field.value !== field.defaultValue);
  if (document.hidden || typed || region.contains(document.activeElement) || document.querySelector("dialog[open]") || region.querySelector("details[open]")) {
    return;
  }
  try {
    const response = await fetch(document.querySelector("main").dataset.address, { headers: { "X-Refresh": "1" } });
    if (!response.ok || response.redirected) {
      throw new Error(String(response.status));
    }
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const fresh = page.querySelectorAll("[data-refresh]")[index];
    if (fresh && fresh.innerHTML !== region.innerHTML) {
      region.innerHTML = fresh.innerHTML;
      showCopyButtons(region);
    }
    region.classList.remove("stale");
  } catch {
    region.classList.add("stale");
  }
}

document.querySelectorAll("[data-refresh]").forEach((region, index) => {
  setInterval(() => refresh(region, index), Number(region.dataset.refresh) * 1000);
});

// preview sends the fields of a form to the address in the attribute data-preview of a region. Then it shows in this region the
// content of the same region of the response.
async function preview(region, form) {
  const body = new URLSearchParams(new FormData(form));
  region.typed = body.toString();
  try {
    const response = await fetch(region.dataset.preview, { method: "POST", body });
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    if (region.typed === body.toString()) { // else a newer preview has been requested
      region.innerHTML = page.querySelector("[data-preview]").innerHTML;
      region.classList.remove("stale");
    }
  } catch {
    region.classList.add("stale");
  }
}

document.querySelectorAll("[data-preview]").forEach((region) => {
  const form = region.closest("form");
  let timer;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => preview(region, form), 300);
  });
});

// "/" goes to the search field. "g" and a digit go to a page of the menu.
let lastKey = "";
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) {
    return;
  }
  if (event.key === "/") {
    event.preventDefault();
    document.querySelector("[data-shortcut='/']")?.focus();
  } else if (lastKey === "g" && event.key >= "1" && event.key <= "9") {
    document.querySelectorAll(".menu a")[Number(event.key) - 1]?.click();
  }
  lastKey = event.key;
});

showCopyButtons(document);
document.querySelector(".menu [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }); // on a phone the menu is one line
