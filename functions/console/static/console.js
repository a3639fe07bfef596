"use strict";
// Everything works without this script. It refreshes regions, asks before what cannot be undone, copies, shows previews as
// one types, and has two shortcuts of the keyboard.

// confirmed asks a question in a dialog and resolves to true if it was answered with the button that has the text of action.
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

// A form with data-confirm is sent after the question was answered with yes.
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

// A form is sent once, also when its button is pressed twice.
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
  if (event.persisted) { // the page before, as it was left: its buttons work again
    document.querySelectorAll("button:disabled").forEach((button) => { button.disabled = false; });
  }
});

// copy works over plain HTTP, too, where browsers have no navigator.clipboard.
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

// An element with data-refresh is replaced by its new content every so many seconds, unless somebody uses it or the page is
// hidden.
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
    region.classList.add("stale"); // it shows an old state
  }
}

document.querySelectorAll("[data-refresh]").forEach((region, index) => {
  setInterval(() => refresh(region, index), Number(region.dataset.refresh) * 1000);
});

// A region with data-preview is replaced by that of the page at this address, which gets the fields of the region's form as
// somebody types.
async function preview(region, form) {
  const body = new URLSearchParams(new FormData(form));
  region.typed = body.toString();
  try {
    const response = await fetch(region.dataset.preview, { method: "POST", body });
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    if (region.typed === body.toString()) { // else a newer preview is under way
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

// "/" goes to the search, and "g" followed by a digit to a page of the menu.
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
